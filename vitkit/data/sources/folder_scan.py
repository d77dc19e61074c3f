"""Scan a folder for image files, in the same order on any file system; links are followed, but never in circles."""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter

from vitkit.data.sources.image_files import count_by_extension, is_image, is_system_file
from vitkit.storage.remote import list_files
from vitkit.text import few, printable

# A folder may be linked as a split (val → test) or as a class and is then read again; deeper, once per class is enough,
# otherwise a few folders that link to each other would be scanned in every possible order.
_CLASS_DEPTH = 2
_FILES_AT_A_TIME = 10_000

_Visited = set[tuple[int, int]]  # device and inode of folders


@dataclass
class FolderScan:
    images: list[str] = field(default_factory=list)  # relative paths, with "/"
    folders: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)  # files without an image's extension
    unreadable: list[str] = field(default_factory=list)
    circular: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  # links to nothing, pipes, devices

    def notes(self) -> list[str]:
        rows = []
        if self.others:
            rows.append(f"not images, skipped: {count_by_extension(self.others)}")
        for names, description in (
            (self.unreadable, "unreadable, skipped"),
            (self.circular, "circular links, not followed"),
            (self.broken, "broken links or not regular files, skipped"),
        ):
            if names:
                rows.append(f"{description}: {few([*map(printable, sorted(names))])}")
        return rows


def scan_folder(root: str, on_files: Callable[[int], None] = lambda files: None) -> FolderScan:
    """Scan a folder and all folders below it; `on_files` is told of more files in batches of thousands."""
    scan = FolderScan()
    scan.images = [*walk_images(root, scan, on_files)]
    scan.folders.sort(key=by_folder)
    return scan


def walk_images(root: str, scan: FolderScan, on_files: Callable[[int], None] = lambda files: None) -> Iterator[str]:
    """Yield the images below a folder in the order of `by_folder`, and add all that is no image to the scan.

    Only the folders on the way to an image are held in memory. What a scan has of a folder, it has before the first
    image of that folder is yielded.
    """
    stack = [_visit(root, "", 0, {_identity(root)}, scan, on_files)]
    while stack:
        for path, inner in stack[-1]:
            if inner is None:
                yield path
            else:
                stack.append(_visit(root, path, len(stack), inner, scan, on_files))
                break
        else:
            stack.pop()


def scan_remote_folder(url: str, on_files: Callable[[int], None] = lambda files: None) -> FolderScan:
    """Scan a remote folder, whose store lists all names below it at once; the result is that of the same local one."""
    names = list_files(url)
    on_files(len(names))
    return scan_names(names)


def scan_names(names: Iterable[str]) -> FolderScan:
    """Return the scan of a local folder that has files of these relative paths, in the same order."""
    scan, folders = FolderScan(), set[str]()
    for name in names:
        parts = name.split("/")
        if any(map(is_system_file, parts)):
            continue
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
        (scan.images if is_image(name) else scan.others).append(name)
    scan.images.sort(key=by_folder)
    scan.others.sort(key=_files_first)
    scan.folders = sorted(folders, key=by_folder)
    return scan


def by_folder(path: str) -> str:
    """Return a key that sorts paths by their parts: no name has a character below the null byte, or that one."""
    return path.replace("/", "\0")


def _files_first(path: str) -> list[tuple[bool, str]]:
    """Return a key that sorts the files of a folder before those in its folders, as they are visited."""
    *folders, name = path.split("/")
    return [*((True, folder) for folder in folders), (False, name)]


def _visit(
    root: str, folder: str, depth: int, visited: _Visited, scan: FolderScan, on_files: Callable[[int], None]
) -> Iterator[tuple[str, _Visited | None]]:
    """Add a folder's files to the scan and return its images and the folders in it, sorted by name.

    A folder comes with those that were visited on the way to it.
    """
    try:
        with os.scandir(os.path.join(root, folder)) as entries:
            inside = []
            while some := list(islice(entries, _FILES_AT_A_TIME)):
                inside += some
                on_files(len(some))
            inside.sort(key=attrgetter("name"))
    except OSError:
        if not folder:
            raise
        scan.unreadable.append(folder)
        return iter(())
    if folder:
        scan.folders.append(folder)
    found: list[tuple[str, bool]] = []  # images and folders
    prefix = f"{folder}/" if folder else ""
    for entry in inside:
        path = prefix + entry.name
        try:
            if is_system_file(entry.name):
                continue
            if entry.is_dir():
                found.append((path, True))
            elif not entry.is_file():
                scan.broken.append(path)
            elif not is_image(entry.name):
                scan.others.append(path)
            elif not os.access(entry.path, os.R_OK):
                scan.unreadable.append(path)
            else:
                found.append((path, False))
        except OSError as error:  # a link to itself, or through a folder without permission
            (scan.circular if error.errno == errno.ELOOP else scan.unreadable).append(path)
    inner = {path: _enter(root, path, depth, visited, scan) for path, is_folder in reversed(found) if is_folder}
    return ((path, inner.get(path)) for path, is_folder in found if not is_folder or inner[path] is not None)


def _enter(root: str, folder: str, depth: int, visited: _Visited, scan: FolderScan) -> _Visited | None:
    """Return the folders that were visited on the way into this one, itself included; None if it is not entered."""
    try:
        identity = _identity(os.path.join(root, folder))
    except OSError:
        scan.unreadable.append(folder)
        return None
    if identity in visited:
        scan.circular.append(folder)
        return None
    if depth + 1 > _CLASS_DEPTH:
        visited.add(identity)
        return visited
    return visited | {identity}


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino
