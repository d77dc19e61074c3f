"""Options that several verbs share, and how options are parsed, checked and printed."""

import json
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro
from tyro.conf import Positional, arg
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from vitkit.errors import ConfigError
from vitkit.messages import WARNING, say
from vitkit.storage.urls import is_url, redacted


def option(help: str, metavar: str) -> Any:
    """Return an option whose default is not printed: the recipe or the run determines it, or the help text names it."""
    return arg(help=help, metavar=metavar, help_behavior_hint="")


Run = Annotated[Positional[str], arg(metavar="RUN", help="a run folder, a weights file, a URL, hf:OWNER/NAME or ti16")]
Data = Annotated[
    Positional[str],
    arg(metavar="DATA", help="a folder, .zip, manifest, shards, arrays, a URL, hf:NAME, fashion"),
]
ImageSize = Annotated[tuple[int, ...] | None, option("image side, or height and width; default: the model's own", "PX")]
Device = Annotated[str, arg(help="auto, cpu, cuda, cuda:1 …", metavar="NAME")]
InferencePrecision = Annotated[Literal["fp32", "bf16", "fp8"], arg(help="of the forward pass")]
InferenceBatch = Annotated[int | None, option("images at a time; default: as many as suit the device", "N")]
Workers = Annotated[int | None, option("data workers; default: as many as the device needs", "N")]
Label = Annotated[str | None, option("the column that holds the classes, in a manifest or hf: set", "COLUMN")]
Task = Annotated[
    Literal["auto", "classify", "segment"], arg(help="auto: segment where the data have masks, otherwise classify")
]
LabelsFile = Annotated[
    Path | None,
    option("class names of weights that carry none: one on each line, in the order of the logits", "FILE"),
]
MaxFailed = Annotated[
    float, arg(help="share of the images that may be unreadable; exit code 3 if more are", metavar="SHARE")
]
Json = Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="print JSON")]


def image_size(sides: tuple[int, ...]) -> tuple[int, int]:
    """Return --image as (height, width)."""
    if len(sides) not in (1, 2):
        raise ConfigError(f"--image takes a side, or height and width; found {len(sides)} numbers")
    if min(sides) < 1:
        raise ConfigError(f"--image {' '.join(map(str, sides))}: 1 or more is needed")
    return sides[0], sides[-1]


def at_least(least: int, **options: int | None) -> None:
    """Raise an error for an option below its least value."""
    for name, value in options.items():
        if value is not None and value < least:
            raise ConfigError(f"--{name} {value}: {least} or more is needed")


def print_json(verb: str, content: Mapping[str, Any]) -> None:
    """Print the result of a verb as one object on one line, in the form of docs/command-line.md."""
    from vitkit import __version__

    print(json.dumps({"verb": verb, "vitkit": __version__, **content}))  # ASCII: file names need not be text


def failures_as_json(failures: Mapping[str, str]) -> dict[str, Any]:
    """Return the images that could not be read in the form of every verb: how many, and each with its reason."""
    return {
        "failed": len(failures),
        "failures": [{"image": image, "error": reason} for image, reason in failures.items()],
    }


def check_max_failed(max_failed: float) -> float:
    if not 0 <= max_failed <= 1:
        raise ConfigError(f"--max-failed {max_failed:g}: a share from 0 to 1 is needed")
    return max_failed


@contextmanager
def advise_max_failed() -> Iterator[None]:
    """Add the option that would allow them to an error about too many unreadable images."""
    from vitkit.data.failures import TooManyFailures, advised_max_failed

    try:
        yield
    except TooManyFailures as error:
        error.add(or_=f"--max-failed {advised_max_failed(error.share):g} leaves them out")
        raise


def replace_renamed(arguments: list[str], renamed: dict[str, str]) -> list[str]:
    """Replace old names of options by the new ones, with a warning on stderr."""
    replaced = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name in renamed:
            text = f"{name} is now {renamed[name]}; the next release drops the old name"
            say(WARNING, text, file=sys.stderr)
            argument = renamed[name] + equals + value
        replaced.append(argument)
    return replaced


NUMBER_NAMES = {int: "a whole number is needed", float: "a number is needed"}
PARSERS = ConstructorRegistry()


@PARSERS.primitive_rule
def _number_parser(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Parse int, float and tuples of them with clear messages; None is a default, never a word on the command line."""
    kind = _without_none(info.type)
    if kind in NUMBER_NAMES:
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar=kind.__name__.upper(),
            instance_from_str=lambda texts: _parse(kind, texts[0]),
            is_instance=lambda value: value is None or isinstance(value, kind),
            str_from_instance=lambda value: [str(value)],
        )
    items = get_args(kind)
    if get_origin(kind) is tuple and (set(items) <= {int, ...} or set(items) <= {float, ...}):
        number = items[0]
        return PrimitiveConstructorSpec(
            nargs="*" if ... in items else len(items),
            metavar=number.__name__.upper(),
            instance_from_str=lambda texts: tuple(_parse(number, text) for text in texts),
            is_instance=lambda value: value is None or isinstance(value, tuple),
            str_from_instance=lambda value: list(map(str, value or (None,))),
        )
    return None


@PARSERS.primitive_rule
def _path_parser(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Parse paths on a file system; pathlib would make a URL the path of a local folder called s3:."""
    if _without_none(info.type) is not Path:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=lambda texts: _local_path(texts[0]),
        is_instance=lambda value: value is None or isinstance(value, Path),
        str_from_instance=lambda value: [str(value)],
    )


@PARSERS.primitive_rule
def _choice_parser(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Parse one of several words that may be left out; None would be listed among them."""
    kind = _without_none(info.type)
    if kind is info.type or get_origin(kind) is not Literal:
        return None
    words = get_args(kind)
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="|".join(words),
        choices=words,
        instance_from_str=lambda texts: texts[0],
        is_instance=lambda value: value is None or value in words,
        str_from_instance=lambda value: [str(value)],
    )


def _local_path(text: str) -> Path:
    if is_url(text):
        raise ValueError(
            f"{redacted(text)} is a URL; a path on a file system is needed. Runs, shards and pages are written with "
            "locks and renames, which object stores do not have: write to a disk, then copy what is finished, as with "
            "aws s3 sync FOLDER s3://BUCKET/FOLDER"
        )
    return Path(text)


def _without_none(kind: Any) -> Any:
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    others = [member for member in get_args(kind) if member is not types.NoneType]
    return others[0] if len(others) == 1 else kind


def _parse(kind: type[int] | type[float], text: str) -> int | float:
    try:
        return kind(text)
    except ValueError:
        numbers = text.replace(",", "x").split("x")
        several = len(numbers) > 1 and all(number.isdigit() for number in numbers)
        raise ValueError(
            f"{NUMBER_NAMES[kind]}, not {text!r}" + f"; several are written {' '.join(numbers)}" * several
        ) from None
