"""Pictures that a person names one by one: files, folders with all that is below them, patterns, lists of them."""

from __future__ import annotations

import glob
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from vitkit.data.sources.base import DataError, Names, Split
from vitkit.data.sources.files import FilePictures, is_picture
from vitkit.data.sources.walk import Found, walk
from vitkit.text import few

STANDARD_INPUT = "-"

log = logging.getLogger("vitkit")


def find(sources: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Files as they are named, folders with all that is below them, patterns ("photos/**/*.jpg") as in a shell; "-" for
    those that standard input names, one on each line.

    In folders and patterns, pictures that may not be read and links to nothing are found too: whoever reads them tells
    why they cannot be used.
    """
    if not sources:
        raise DataError("no pictures named.", try_="files, a folder of them, or a pattern")
    return [path for source in map(Path, sources) for named in _listed(source) for path in _expand(named)]


def as_split(paths: Sequence[Path]) -> Split:
    """Without labels, to be read as any data are."""
    names = Names(map(str, paths))
    return Split(names, np.full(len(names), -1, np.int64), FilePictures(".", names), np.arange(len(names)))


def _listed(source: Path) -> Iterator[Path]:
    if str(source) != STANDARD_INPUT:
        yield source
        return
    lines = [line for line in sys.stdin.buffer.read().splitlines() if line]  # bytes: names of files need not be text
    if not lines:
        raise DataError("standard input names no pictures.", try_="one path on each line")
    yield from (Path(os.fsdecode(line)) for line in lines)


def _expand(source: Path) -> Iterator[Path]:
    if os.path.isdir(source):  # pathlib's raises over a name that is too long, or a folder that may not be entered
        yield from (source / name for name in _below(source))
    elif glob.has_magic(str(source)) and not os.path.lexists(source):
        matches = [Path(match) for match in sorted(glob.glob(str(source), recursive=True))]
        pictures = [
            match
            for match in matches
            if is_picture(match.name) and (os.path.isfile(match) or not os.path.exists(match))
        ]
        if not pictures:
            raise DataError(f"no picture matches {source}.", found=few([match.name for match in matches]) or "nothing")
        yield from pictures
    else:
        try:
            source.stat()
        except FileNotFoundError:
            raise DataError(f"{source} does not exist.") from None
        except OSError as error:
            raise DataError(f"{source} cannot be read: {error.strerror}.") from error
        yield source


def _below(folder: Path) -> list[str]:
    try:
        inside = walk(str(folder))
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}.") from error
    gone = [name for name in inside.broken if not os.path.exists(folder / name)]  # what is there never ends: pipes
    named = [name for name in (*inside.unreadable, *gone) if is_picture(name)]
    left_out = Found(
        unreadable=[*set(inside.unreadable) - set(named)],
        circular=inside.circular,
        broken=[*set(inside.broken) - set(named)],
    )
    for note in left_out.notes():
        log.warning("%s: %s", folder, note)
    if not inside.pictures and not named:
        raise DataError(f"{folder} has no pictures in it.", found=few(inside.others) or "nothing")
    return sorted((*inside.pictures, *named), key=lambda name: name.split("/"))
