"""Options that several verbs have, and how they are checked and printed."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import tyro
from tyro.conf import Positional, arg

from vitkit.errors import ConfigError


def option(help: str, metavar: str) -> Any:
    """An option whose default is the recipe's or the run's own, and so not worth printing."""
    return arg(help=help, metavar=metavar, help_behavior_hint="")


Run = Annotated[Positional[str], arg(metavar="RUN", help="a run folder, a weights file or hf:OWNER/NAME")]
Data = Annotated[
    Positional[str], arg(metavar="DATA", help="a folder, .zip, manifest, shards, arrays, hf:NAME, fashion")
]
Device = Annotated[str, arg(help="auto, cpu, cuda, cuda:1 …", metavar="NAME")]
Label = Annotated[str | None, option("the column that holds the classes, in a manifest or hf: set", "COLUMN")]
Json = Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="print JSON")]


class Terminated(KeyboardInterrupt):
    """SIGTERM; like Ctrl-C, nothing that catches errors catches it."""


@contextmanager
def cleared_up() -> Iterator[None]:
    """Schedulers end work with SIGTERM: as after Ctrl-C, what is half-written goes, and the rest is kept."""
    if threading.current_thread() is not threading.main_thread():  # which alone hears of signals
        yield
        return

    def heard(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_code(stopped: KeyboardInterrupt) -> int:
    """As shells count: 128 and the signal's number."""
    return 128 + (signal.SIGTERM if isinstance(stopped, Terminated) else signal.SIGINT)


def image_size(sides: tuple[int, ...]) -> tuple[int, int]:
    if len(sides) not in (1, 2):
        raise ConfigError(f"--image takes a side, or height and width; found {len(sides)} numbers")
    if min(sides) < 1:
        raise ConfigError(f"--image {' '.join(map(str, sides))}: 1 or more is needed")
    return sides[0], sides[-1]


def at_least(least: int, **options: int | None) -> None:
    for name, value in options.items():
        if value is not None and value < least:
            raise ConfigError(f"--{name} {value}: {least} or more is needed")


def outside(data: Path, file: Path) -> Path:
    """A picture written into a folder of pictures would be one of them at the next look."""
    folder = data.resolve()
    return folder.parent / file if data.is_dir() and file.resolve().is_relative_to(folder) else file


def print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, indent=2))
