"""The images that a manifest names without an extension: `image_id` ISIC_0024306 is images/ISIC_0024306.jpg."""

import os
from collections.abc import Sequence
from pathlib import Path

from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.image_files import is_image, is_system_file
from vitkit.text import counted, printable


def complete_paths(name: str, folder: Path, paths: Sequence[tuple[int, str]]) -> tuple[list[str], str]:
    """Return the paths of (line, path) pairs with the extension that a file has, and a note, "" if nothing changed.

    Names without an image's extension are searched in the manifest's folder and the folders directly inside it. A name
    that two files have is an error; one that no file has stays as it is.
    """
    bare = [path for _, path in paths if not is_image(path) and not os.path.isfile(os.path.join(folder, path))]
    if not bare:
        return [path for _, path in paths], ""
    files: dict[str, list[str]] = {}
    for file in _image_files(folder):
        stem = os.path.splitext(file)[0]
        for written in {stem, os.path.basename(stem)}:
            files.setdefault(written, []).append(file)
    completed, changed = [], []
    unresolved = set(bare)
    for line, path in paths:
        matching = files.get(os.path.normpath(path), []) if path in unresolved else []
        if len(matching) > 1:
            raise DataError(
                f"{name}, line {line}: {printable(path)} could be any of {counted(len(matching), 'file')}.",
                found=[printable(file) for file in sorted(matching)[:5]],
                try_="a column with whole paths, such as path",
            )
        completed.append(matching[0] if matching else path)
        changed += matching
    if not changed:
        return completed, ""
    return completed, f"{counted(len(changed), 'name')} without an extension found as files such as {changed[0]}"


def _image_files(folder: Path) -> list[str]:
    """Return the images in a folder and in the folders directly inside it, relative to it."""
    found = []
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir() and not is_system_file(entry.name):
            found += [f"{entry.name}/{inner}" for inner in sorted(os.listdir(entry.path)) if is_image(inner)]
        elif is_image(entry.name):
            found.append(entry.name)
    return [path for path in found if not is_system_file(os.path.basename(path))]
