"""Image paths from the command line: files, folders, glob patterns, or a list on standard input."""

import glob
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from vitkit.data.sources.dataset import DataError, PackedStrings, Split
from vitkit.data.sources.folder_scan import FolderScan, scan_folder
from vitkit.data.sources.image_files import FileImages, is_image
from vitkit.text import few

STANDARD_INPUT = "-"

log = logging.getLogger("vitkit")


def find_images(sources: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return the image files of all sources: files, folders with everything below, patterns ("photos/**/*.jpg").

    "-" stands for the paths on standard input, one per line. In folders and patterns, unreadable images and broken
    links are included: reading them later reports why they cannot be used.
    """
    if not sources:
        raise DataError("no images named.", try_="files, a folder of them, or a pattern")
    return [
        path for source in map(Path, sources) for listed in _with_standard_input(source) for path in _expand(listed)
    ]


def names_several(source: str | os.PathLike[str]) -> bool:
    """Return whether the source is a folder or a pattern, as opposed to the name of one file."""
    return os.path.isdir(source) or (glob.has_magic(os.fspath(source)) and not os.path.lexists(source))


def unlabelled_split(paths: Sequence[Path]) -> Split:
    """Return the files as a split without labels."""
    names = PackedStrings(map(str, paths))
    return Split(names, np.full(len(names), -1, np.int64), FileImages(".", names), np.arange(len(names)))


def outside_data(data: Path, file: Path) -> Path:
    """Return a path outside the data folder: the next run would read an image inside it as data."""
    folder = data.resolve()
    return folder.parent / file if data.is_dir() and file.resolve().is_relative_to(folder) else file


def _with_standard_input(source: Path) -> Iterator[Path]:
    if str(source) != STANDARD_INPUT:
        yield source
        return
    lines = [line for line in sys.stdin.buffer.read().splitlines() if line]  # bytes: file names need not be valid text
    if not lines:
        raise DataError("standard input names no images.", try_="one path per line")
    yield from (Path(os.fsdecode(line)) for line in lines)


def _expand(source: Path) -> Iterator[Path]:
    if os.path.isdir(source):  # pathlib raises an error for a name that is too long, or a folder without permission
        yield from (source / name for name in _below(source))
    elif names_several(source):
        matches = [Path(match) for match in sorted(glob.glob(str(source), recursive=True))]
        images = [
            match for match in matches if is_image(match.name) and (os.path.isfile(match) or not os.path.exists(match))
        ]
        if not images:
            raise DataError(f"no image matches {source}.", found=few([match.name for match in matches]) or "nothing")
        yield from images
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
        scan = scan_folder(str(folder))
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}.") from error
    gone = [name for name in scan.broken if not os.path.exists(folder / name)]  # not pipes: reading them never ends
    failing = [name for name in (*scan.unreadable, *gone) if is_image(name)]
    skipped = FolderScan(
        unreadable=[*set(scan.unreadable) - set(failing)],
        circular=scan.circular,
        broken=[*set(scan.broken) - set(failing)],
    )
    for note in skipped.notes():
        log.warning("%s: %s", folder, note)
    if not scan.images and not failing:
        raise DataError(f"{folder} has no images in it.", found=few(scan.others) or "nothing")
    return sorted((*scan.images, *failing), key=lambda name: name.split("/"))
