"""Pictures that a person names one by one: files, folders with all that is below them, patterns."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from vitkit.data.sources.base import DataError, Names, Split
from vitkit.data.sources.files import FilePictures, few, is_picture
from vitkit.data.sources.walk import walk


def find(sources: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Files as they are named, folders with all that is below them, patterns ("photos/**/*.jpg") as in a shell."""
    if not sources:
        raise DataError("no pictures named.", try_="files, a folder of them, or a pattern")
    return [path for source in map(Path, sources) for path in _expand(source)]


def as_split(paths: Sequence[Path]) -> Split:
    """Without labels, to be read as any data are."""
    names = Names(map(str, paths))
    return Split(names, np.full(len(names), -1, np.int64), FilePictures(".", names), np.arange(len(names)))


def _expand(source: Path) -> Iterator[Path]:
    if source.is_dir():
        inside = walk(str(source))
        if not inside.pictures:
            raise DataError(f"{source} has no pictures in it.", found=few(inside.others) or "nothing")
        yield from (source / name for name in inside.pictures)
    elif source.exists():
        yield source
    elif glob.has_magic(str(source)):
        matches = [Path(match) for match in sorted(glob.glob(str(source), recursive=True))]
        pictures = [match for match in matches if match.is_file() and is_picture(match.name)]
        if not pictures:
            raise DataError(f"no picture matches {source}.", found=few([match.name for match in matches]) or "nothing")
        yield from pictures
    else:
        raise DataError(f"{source} does not exist.")
