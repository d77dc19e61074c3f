"""Images from the command line: files, folders, glob patterns, a list on standard input, or shards."""

import glob
import heapq
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitkit.data.sources.dataset import DataError, PackedStrings, Split, StoredImage
from vitkit.data.sources.folder_scan import FolderScan, by_folder, scan_remote_folder, walk_images
from vitkit.data.sources.image_files import FileImages, is_image, without_credentials
from vitkit.data.sources.shards import INDEX, INDEX_ARRAYS, has_index, open_shards
from vitkit.storage.local_copies import local_copy_if_any
from vitkit.storage.remote import list_pattern
from vitkit.storage.urls import WEB, is_url, join, last_part, redacted, scheme
from vitkit.text import few

STANDARD_INPUT = "-"

log = logging.getLogger("vitkit")


def find_images(sources: Sequence[str | os.PathLike[str]]) -> list[str | Path]:
    """Return the image files of all sources as paths or URLs, as `find_image_names` finds them."""
    return [name if is_url(name) else Path(name) for name in find_image_names(sources)]


def find_image_names(
    sources: Sequence[str | os.PathLike[str]], on_files: Callable[[int], None] = lambda files: None
) -> list[str]:
    """Return what `iterate_image_names` yields."""
    return [*iterate_image_names(sources, on_files)]


def iterate_image_names(
    sources: Sequence[str | os.PathLike[str]], on_files: Callable[[int], None] = lambda files: None
) -> Iterator[str]:
    """Yield the image files of all sources: files, folders with everything below, patterns ("photos/**/*.jpg").

    "-" stands for the paths on standard input, one per line. Files that are missing, folders and images without
    permission and broken links are included: reading them later reports why they cannot be used, and the others are
    not lost over them. An empty folder, or a pattern that matches nothing, is an error only if nothing else is found.
    A million files are a million texts: objects for paths would take longer than listing them. `on_files` is told of
    more files in batches of thousands.
    """
    if not sources:
        raise DataError("no images named.", try_="files, a folder of them, or a pattern")
    found = False
    without_images: list[DataError] = []
    for source in [os.fspath(one) for one in sources]:
        listed = source == STANDARD_INPUT
        for name in _standard_input() if listed else [source]:
            try:
                as_pattern = not listed
                expand = (
                    _expand_url(name, on_files, as_pattern) if is_url(name) else _expand(name, on_files, as_pattern)
                )
                for image in expand:
                    found = True
                    yield image
            except DataError as error:
                without_images.append(error)
    if without_images and not found:
        raise without_images[0]
    for empty in without_images:
        log.warning("%s", str(empty).splitlines()[0])


def open_images(
    sources: Sequence[str | os.PathLike[str]], on_files: Callable[[int], None] = lambda files: None
) -> Split:
    """Return the images of all sources, or of shards, which have an index of their own; labels do not matter."""
    if len(sources) == 1 and (folder := index_folder(os.fspath(sources[0]))) is not None:
        location = os.fspath(sources[0])
        return join_splits([*open_shards(redacted(location), folder, location).splits.values()])
    return unlabelled_split(find_image_names(sources, on_files))


def index_folder(source: str) -> Path | None:
    """Return the folder that holds an index of shards, of remote ones the copy; None for images of other kinds."""
    if not is_url(source):
        return Path(source) if os.path.isdir(source) and has_index(Path(source)) else None
    if not names_several(source) or "*" in source:
        return None
    index = local_copy_if_any(join(source, INDEX))
    return index.parent if index and local_copy_if_any(join(source, INDEX_ARRAYS)) else None


def join_splits(splits: Sequence[Split]) -> Split:
    """Return the images of several splits as one without labels."""
    if len(splits) == 1:
        return splits[0]
    keys, firsts = PackedStrings(name for split in splits for name in split.keys), np.cumsum([0, *map(len, splits)])
    return Split(keys, np.full(len(keys), -1, np.int64), JoinedImages(splits, firsts), np.arange(len(keys)))


@dataclass(frozen=True)
class JoinedImages:
    """The images of several splits in a row, as an ImageStore."""

    splits: Sequence[Split]
    firsts: NDArray[np.int64]  # the row of the first image of each split, and the number of rows

    def read(self, row: int) -> StoredImage:
        number = int(np.searchsorted(self.firsts, row, side="right")) - 1
        split = self.splits[number]
        return split.store.read(int(split.rows[row - self.firsts[number]]))

    @property
    def is_remote(self) -> bool:
        return any(split.is_remote for split in self.splits)

    def read_ahead(self, rows: NDArray[np.int64]) -> "JoinedImages":
        """Return the same images with requests for these rows under way, where they are remote."""
        numbers = np.searchsorted(self.firsts, rows, side="right") - 1
        splits = [
            split.read_ahead((rows[numbers == number] - self.firsts[number]).tolist()) if split.is_remote else split
            for number, split in enumerate(self.splits)
        ]
        return JoinedImages(splits, self.firsts)


def names_several(source: str | os.PathLike[str]) -> bool:
    """Return whether the source is a folder or a pattern, as opposed to the name of one file."""
    if is_url(source):
        return not is_image(last_part(os.fspath(source)))
    return os.path.isdir(source) or (glob.has_magic(os.fspath(source)) and not os.path.lexists(source))


def unlabelled_split(paths: Sequence[str | os.PathLike[str]] | Split) -> Split:
    """Return the files as a split without labels; images that are a split already stay as they are."""
    if isinstance(paths, Split):
        return paths
    names = PackedStrings(os.fspath(path) for path in paths)
    shown = without_credentials(names)
    return Split(shown, np.full(len(names), -1, np.int64), FileImages(".", names), np.arange(len(names)))


def outside_data(data: Path, file: Path) -> Path:
    """Return a path outside the data folder: the next run would read an image inside it as data."""
    folder = data.resolve()
    return folder.parent / file if data.is_dir() and file.resolve().is_relative_to(folder) else file


def _standard_input() -> list[str]:
    lines = [line for line in sys.stdin.buffer.read().splitlines() if line]  # bytes: file names need not be valid text
    if not lines:
        raise DataError("standard input names no images.", try_="one path per line")
    return [os.fsdecode(line) for line in lines]


def _expand_url(url: str, on_files: Callable[[int], None], as_pattern: bool) -> list[str]:
    """Return the images of a URL: itself if its name is an image's or it has a query, else those below it."""
    if scheme(url) in WEB and "?" in url:
        return [url]
    if as_pattern and "*" in url:
        images = [match for match in list_pattern(url) if is_image(last_part(match))]
        if not images:
            raise DataError(f"no image matches {redacted(url)}.")
        return images
    if is_image(last_part(url)) or not as_pattern:
        return [url]
    scan = scan_remote_folder(url, on_files)
    if not scan.images:
        raise DataError(f"{redacted(url)} has no images in it.", found=few(scan.others) or "nothing")
    return [join(url, name) for name in scan.images]


def _expand(name: str, on_files: Callable[[int], None], as_pattern: bool) -> Iterable[str]:
    """Return the images of a source; a name that is no folder and no pattern stands for itself, even if it is missing.

    The shell expands patterns of the command line, and a user may have quoted them; a list holds names only.
    """
    source = Path(name)
    if os.path.isdir(source):  # pathlib raises an error for a name that is too long, or a folder without permission
        folder = os.path.join("" if source == Path() else source, "")  # "photos/", and nothing for "."
        return (folder + name if name else str(source) for name in _below(source, on_files))
    if not (as_pattern and glob.has_magic(str(source))) or os.path.lexists(source):
        return [str(source)]
    matches = [Path(match) for match in sorted(glob.glob(str(source), recursive=True))]
    images = [
        str(match) for match in matches if is_image(match.name) and (os.path.isfile(match) or not os.path.exists(match))
    ]
    if not images:
        raise DataError(f"no image matches {source}.", found=few([match.name for match in matches]) or "nothing")
    return images


def _below(folder: Path, on_files: Callable[[int], None]) -> Iterator[str]:
    """Yield the images below a folder in order, also those that cannot be read: reading them says why."""
    scan, images, failing = FolderScan(), 0, _FailingNames(folder)
    try:
        for image in walk_images(str(folder), scan, on_files):
            images += 1
            if failing.may_be_before(scan):
                yield from failing.before(image, scan)
            yield image
    except OSError:
        yield ""  # the folder itself, in place of its images: reading it fails for the same reason
        return
    yield from failing.before(None, scan)
    skipped = FolderScan(circular=scan.circular, broken=[*set(scan.broken) - set(failing.all)])
    for note in skipped.notes():
        log.warning("%s: %s", folder, note)
    if not images and not failing.all:
        raise DataError(f"{folder} has no images in it.", found=few(scan.others) or "nothing")


class _FailingNames:
    """The names that a scan could not read, folders without permission too, and broken links of images' names."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.all = folder, list[str]()
        self._waiting: list[tuple[str, str]] = []  # a heap: a folder's are known before its first image
        self._unreadable = self._broken = 0  # names of the scan that are in `all`, or have been left out

    def may_be_before(self, scan: FolderScan) -> bool:
        return bool(self._waiting) or self._unreadable < len(scan.unreadable) or self._broken < len(scan.broken)

    def before(self, image: str | None, scan: FolderScan) -> Iterator[str]:
        """Yield those that come before an image in order; None stands for the end."""
        gone = [name for name in scan.broken[self._broken :] if not os.path.exists(self.folder / name)]  # not pipes
        new = [*scan.unreadable[self._unreadable :], *filter(is_image, gone)]
        self._unreadable, self._broken = len(scan.unreadable), len(scan.broken)
        self.all += new
        for name in new:
            heapq.heappush(self._waiting, (by_folder(name), name))
        while self._waiting and (image is None or self._waiting[0][0] < by_folder(image)):
            yield heapq.heappop(self._waiting)[1]
