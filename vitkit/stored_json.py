"""JSON that vitkit reads back, checked against a type: a damaged or hostile file is one error that names the key.

The type is an annotation: `str`, `int | None`, `tuple[str, ...]`, `dict[str, Any]`, `Literal`, a TypedDict or a
dataclass, which is then made. File size, nesting and numbers have bounds even where the type is `Any`. Keys that the
type does not have are kept in a TypedDict and left out of a dataclass: a newer version may have written them.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints, is_typeddict

from vitkit.errors import VitkitError
from vitkit.regular_file import open_regular

MOST_BYTES = 64 << 20  # of a file, unless the caller expects more
DEEPEST = 64  # levels of nesting in a value of any type
LARGEST = 2**63  # integers are under it, as in TOML
SHOWN = 60  # characters of a value in a message

Error = Callable[..., VitkitError]


class _Mismatch(Exception):
    def __init__(self, key: str, expected: str, value: Any):
        shown = "null" if value is None else _shortened(repr(value))
        super().__init__(f"{key.lstrip('.') or 'it'} should be {expected}, not {shown}")


class _Missing(_Mismatch):
    def __init__(self, key: str):
        Exception.__init__(self, f"{key.lstrip('.')} is missing")


def read_json(path: Path, kind: Any, *, error: Error = VitkitError, most: int = MOST_BYTES) -> Any:
    """Return the content of a JSON file as the type `kind`; FileNotFoundError without the file, `error` otherwise."""
    return parse_json(read_bytes(path, error=error, most=most), kind, str(path), error=error)


def read_bytes(path: Path, *, error: Error = VitkitError, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file of at most so many bytes."""
    try:
        with open_regular(path) as file:  # Python makes room for as many bytes as are asked for
            content: bytes = file.read(min(os.fstat(file.fileno()).st_size, most) + 1)
        if len(content) > most:
            raise error(f"{path} is larger than {most:,} bytes, the most that such a file can have.")
        return content
    except FileNotFoundError:
        raise
    except OSError as cause:
        raise error(f"{path} cannot be read: {cause.strerror}.") from cause


def parse_json(text: str | bytes, kind: Any, origin: str, *, error: Error = VitkitError) -> Any:
    """Return JSON text as the type `kind`; `origin` names it in errors."""
    try:
        content = json.loads(text)
    except RecursionError as cause:
        raise error(f"{origin} is damaged: it is nested more than {DEEPEST} levels deep.") from cause
    except ValueError as cause:
        raise error(f"{origin} is damaged, it is not JSON: {_shortened(str(cause), 200)}.") from cause
    return conform(content, kind, origin, error=error)


def conform(value: Any, kind: Any, origin: str, *, error: Error = VitkitError) -> Any:
    """Return JSON or TOML data as the type `kind`, or raise an error that names the key and what was expected."""
    try:
        return _convert(value, kind, "")
    except _Mismatch as cause:
        raise error(f"{origin} is damaged: {cause}.") from cause


def _convert(value: Any, kind: Any, key: str) -> Any:
    if kind is Any:
        return _plain(value, key, DEEPEST)
    if kind in _SCALARS:
        return _scalar(value, kind, key)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _union(value, arguments, key)
    if origin is Literal:
        if isinstance(value, (str, int)) and value in arguments:
            return value
        raise _Mismatch(key, f"one of {', '.join(map(str, arguments))}", value)
    if origin in (tuple, list):
        return origin(_items(value, arguments, key, fixed=origin is tuple and arguments[-1] is not Ellipsis))
    if not isinstance(value, Mapping):
        raise _Mismatch(key, "an object", value)
    if is_typeddict(kind):
        return _table(value, kind, key)
    if is_dataclass(kind):
        return _dataclass(value, kind, key)
    return {name: _convert(inner, arguments[1], _below(key, name)) for name, inner in value.items()}


def _union(value: Any, kinds: tuple[Any, ...], key: str) -> Any:
    if value is None and NoneType in kinds:
        return None
    *others, last = [kind for kind in kinds if kind is not NoneType]
    for kind in others:
        try:
            return _convert(value, kind, key)
        except _Mismatch:
            continue
    return _convert(value, last, key)


def _scalar(value: Any, kind: type, key: str) -> Any:
    if kind is float and type(value) is int and abs(value) < LARGEST:
        return value
    if type(value) is not kind or (type(value) is int and abs(value) >= LARGEST):
        raise _Mismatch(key, _SCALARS[kind], value)
    return value


def _items(value: Any, arguments: tuple[Any, ...], key: str, *, fixed: bool) -> list[Any]:
    if not isinstance(value, (list, tuple)) or (fixed and len(value) != len(arguments)):
        raise _Mismatch(key, f"a list of {len(arguments)}" if fixed else "a list", value)
    if not fixed and _all_of(arguments[0], value):
        return list(value)
    kinds = arguments if fixed else arguments[:1] * len(value)
    pairs = zip(value, kinds, strict=True)
    return [_convert(item, kind, f"{key}[{index}]") for index, (item, kind) in enumerate(pairs)]


def _all_of(kind: Any, values: Any) -> bool:
    """Return whether all values are texts, or all are integers within bounds; a confusion matrix has millions."""
    if kind not in (int, str) or not values or not all(type(item) is kind for item in values):
        return False
    return kind is str or max(-min(values), max(values)) < LARGEST


def _table(value: Mapping[str, Any], kind: Any, key: str) -> dict[str, Any]:
    hints = _hints(kind)
    for name in sorted(_required_keys(kind)):
        if name not in value:
            raise _Missing(_below(key, name))
    return {name: _convert(inner, hints.get(name, Any), _below(key, name)) for name, inner in value.items()}


def _dataclass(value: Mapping[str, Any], kind: Any, key: str) -> Any:
    hints, chosen = _hints(kind), {}
    for field in fields(kind):
        if field.name in value:
            chosen[field.name] = _convert(value[field.name], hints[field.name], _below(key, field.name))
        elif field.default is MISSING and field.default_factory is MISSING:
            raise _Missing(_below(key, field.name))
    return kind(**chosen)


def _plain(value: Any, key: str, levels: int) -> Any:
    """Check a value of any type: its nesting and its integers."""
    if not levels:
        raise _Mismatch(key, f"nested at most {DEEPEST} levels deep", value)
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _plain(inner, _below(key, name), levels - 1)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _plain(inner, f"{key}[{index}]", levels - 1)
    elif type(value) is int and abs(value) >= LARGEST:
        raise _Mismatch(key, _SCALARS[int], value)
    return value


@cache
def _required_keys(kind: Any) -> frozenset[str]:
    """Return the keys that a TypedDict must have.

    Its own `__required_keys__` cannot see `Required` in a module whose annotations are strings.
    """
    marks = {name: get_origin(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}
    required = {name for name, mark in marks.items() if mark is Required}
    optional = {name for name, mark in marks.items() if mark is NotRequired}
    return (kind.__required_keys__ | required) - optional


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _below(key: str, name: str) -> str:
    return f"{key}.{name if name.isidentifier() else _shortened(repr(name))}"


def _shortened(text: str, most: int = SHOWN) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


_SCALARS = {int: "an integer of 64 bits", float: "a number", str: "text", bool: "true or false"}
