"""Words on the command line → numbers; one that is none is told as a person would."""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

NAMES = {int: "a whole number is needed", float: "a number is needed"}
NUMBERS = ConstructorRegistry()


@NUMBERS.primitive_rule
def _number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """int, float and tuples of int, with None or without: that is no word to say, but what was not said."""
    kind = _without_none(info.type)
    if kind in NAMES:
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar=kind.__name__.upper(),
            instance_from_str=lambda words: _read(kind, words[0]),
            is_instance=lambda found: found is None or isinstance(found, kind),
            str_from_instance=lambda found: [str(found)],
        )
    parts = get_args(kind)
    if get_origin(kind) is tuple and set(parts) <= {int, ...}:
        return PrimitiveConstructorSpec(
            nargs="*" if ... in parts else len(parts),
            metavar="INT",
            instance_from_str=lambda words: tuple(_read(int, word) for word in words),
            is_instance=lambda found: found is None or isinstance(found, tuple),
            str_from_instance=lambda found: list(map(str, found or (None,))),
        )
    return None


def _without_none(kind: Any) -> Any:
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    others = [one for one in get_args(kind) if one is not types.NoneType]
    return others[0] if len(others) == 1 else kind


def _read(kind: type[int] | type[float], word: str) -> int | float:
    try:
        return kind(word)
    except ValueError:
        numbers = word.replace(",", "x").split("x")
        several = len(numbers) > 1 and all(number.isdigit() for number in numbers)
        raise ValueError(
            f"{NAMES[kind]}, not {word!r}" + f"; several are written {' '.join(numbers)}" * several
        ) from None
