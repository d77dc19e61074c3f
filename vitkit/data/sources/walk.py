"""Every picture file below a folder, in one order on any file system; links are followed, but never in circles."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field

from vitkit.data.sources.files import by_extension, is_picture, is_rubbish
from vitkit.text import few, printable

# A folder may be linked as a split (val → test) or as a class and is then read again; deeper, once per class is enough,
# or a handful of folders that link to each other would be walked in every order there is.
_CLASS_DEPTH = 2


@dataclass
class Found:
    pictures: list[str] = field(default_factory=list)  # relative, with "/" between
    folders: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)  # files that no picture's name ends like
    unreadable: list[str] = field(default_factory=list)
    circular: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  # links to nothing, pipes, devices

    def notes(self) -> list[str]:
        rows = []
        if self.others:
            rows.append(f"not pictures, left out: {by_extension(self.others)}")
        for names, what in (
            (self.unreadable, "unreadable, left out"),
            (self.circular, "circular links, not followed"),
            (self.broken, "broken links or no plain files, left out"),
        ):
            if names:
                rows.append(f"{what}: {few([*map(printable, sorted(names))])}")
        return rows


def walk(root: str) -> Found:
    found = Found()
    waiting: list[tuple[str, int, set[tuple[int, int]]]] = [("", 0, {_identity(root)})]
    while waiting:
        folder, depth, seen = waiting.pop()
        for name in reversed(_visit(root, folder, found)):
            try:
                identity = _identity(os.path.join(root, name))
            except OSError:
                found.unreadable.append(name)
                continue
            if identity in seen:
                found.circular.append(name)
                continue
            if depth + 1 > _CLASS_DEPTH:
                seen.add(identity)
                waiting.append((name, depth + 1, seen))
            else:
                waiting.append((name, depth + 1, seen | {identity}))
    found.pictures.sort(key=lambda path: path.split("/"))
    found.folders.sort(key=lambda path: path.split("/"))
    return found


def _visit(root: str, folder: str, found: Found) -> list[str]:
    """Sorts a folder's files into `found`; the folders in it, sorted by name."""
    try:
        with os.scandir(os.path.join(root, folder)) as entries:
            inside = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        if not folder:
            raise
        found.unreadable.append(folder)
        return []
    if folder:
        found.folders.append(folder)
    folders = []
    for entry in inside:
        path = f"{folder}/{entry.name}" if folder else entry.name
        try:
            if is_rubbish(entry.name):
                continue
            if entry.is_dir():
                folders.append(path)
            elif not entry.is_file():
                found.broken.append(path)
            elif not is_picture(entry.name):
                found.others.append(path)
            elif not os.access(entry.path, os.R_OK):
                found.unreadable.append(path)
            else:
                found.pictures.append(path)
        except OSError as error:  # a link to itself, or through a folder that may not be entered
            (found.circular if error.errno == errno.ELOOP else found.unreadable).append(path)
    return folders


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino
