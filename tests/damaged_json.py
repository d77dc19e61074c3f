"""Hypothesis strategies for damaged and hostile JSON and TOML, and for files that are neither."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from typing import Any

import tomli_w
from hypothesis import strategies as st

from vitkit.stored_json import DEEPEST

# what a key may hold instead of its value, among them what makes naive readers fail
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 10**9, 2**63, 10**400, -(10**400), 1e308, float("inf"), float("nan"), 0.5]),
    st.text(max_size=3),
    st.sampled_from(["\ud800", "\x1b[31m", "\0", "../..", "9" * 5000]),
    st.recursive(st.none() | st.integers(), lambda inner: st.lists(inner, max_size=2), max_leaves=3),
    st.dictionaries(st.text(max_size=2), st.integers() | st.none(), max_size=2),
)

# whole files that are not the object that they should be
NO_OBJECTS = [
    *(b"", b"null", b"[]", b'"text"', b"1e999", b"\0" * 100, b"\xff\xfe", b"9" * 5000),
    *(b"[" * 200_000 + b"]" * 200_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b'{"a": 1', b'{"a": 1}}'),
]


@st.composite
def damaged(draw: st.DrawFn, content: Any) -> Any:
    """Return the content with one to three values replaced, removed, added, or buried in brackets."""
    content = copy.deepcopy(content)
    for _ in range(draw(st.integers(1, 3))):
        places = list(containers(content))
        if not places or draw(st.integers(0, 20)) == 0:
            content = draw(JUNK)
            continue
        place = draw(st.sampled_from(places))
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        action = draw(st.sampled_from(["replace", "remove", "add", "bury"] if keys else ["add"]))
        key = draw(st.sampled_from(keys)) if keys else None
        if action == "replace":
            place[key] = draw(JUNK)
        elif action == "remove":
            del place[key]
        elif action == "bury":
            for _ in range(draw(st.sampled_from([1, DEEPEST + 1, 300]))):
                place[key] = [place[key]]
        elif isinstance(place, dict):
            place[draw(st.sampled_from(["", "extra", "depth", "\ud800"]))] = draw(JUNK)
        else:
            place.append(draw(JUNK))
    return content


def containers(content: Any, levels: int = 6) -> Iterator[Any]:
    if levels and isinstance(content, (dict, list)):
        yield content
        for inner in content.values() if isinstance(content, dict) else content[:20]:
            yield from containers(inner, levels - 1)


@st.composite
def damaged_text(draw: st.DrawFn, content: Any) -> bytes:
    """Return the content as the bytes of a JSON file, damaged in its values or in its bytes."""
    text = json.dumps(content)
    action = draw(
        st.sampled_from(["values", "values", "values", "values", "cut", "byte", "twice", "encoding", "other"])
    )
    if action == "values":
        return json.dumps(draw(damaged(content))).encode()
    if action == "cut":
        return text[: draw(st.integers(0, len(text)))].encode()
    if action == "byte":
        position = draw(st.integers(0, len(text) - 1))
        return text[:position].encode() + draw(st.binary(min_size=1, max_size=2)) + text[position + 1 :].encode()
    if action == "twice":  # the last one of equal keys counts
        key = draw(st.sampled_from([*content])) if isinstance(content, dict) and content else ""
        return (text[:-1] + f", {json.dumps(key)}: {json.dumps(draw(JUNK))}" + text[-1:]).encode()
    if action == "encoding":
        return text.encode(draw(st.sampled_from(["utf-16", "utf-32", "utf-8-sig", "utf-16-be"])))
    return draw(st.sampled_from(NO_OBJECTS))


@st.composite
def damaged_toml(draw: st.DrawFn, content: dict[str, Any]) -> bytes:
    """Return the content as the bytes of a TOML file, damaged in its values or in its bytes."""
    text = tomli_w.dumps(content).encode()
    action = draw(st.sampled_from(["values", "values", "values", "values", "cut", "byte", "other"]))
    if action == "values":
        # TOML has no null, and tables only; its writer does not nest as deep as its reader
        with contextlib.suppress(TypeError, AttributeError, ValueError, RecursionError):
            return tomli_w.dumps(draw(damaged(content))).encode()
    if action == "cut":
        return text[: draw(st.integers(0, len(text)))]
    if action == "byte":
        position = draw(st.integers(0, len(text) - 1))
        return text[:position] + draw(st.binary(min_size=1, max_size=2)) + text[position + 1 :]
    return draw(
        st.sampled_from([*NO_OBJECTS, b"a = " + b"[" * 100_000, b"a = 1979-05-27T07:32:00Z", b"a = 0x" + b"f" * 40])
    )
