"""The files that a manifest names, with or without an extension: `image_id` ISIC_0024306 is images/ISIC_0024306.jpg."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from vitkit.data.sources.dataset import DataError, PackedStrings
from vitkit.data.sources.image_files import is_image, is_system_file
from vitkit.storage.urls import is_url
from vitkit.text import counted, printable


def complete_paths(
    name: str, folder: Path, lines: Sequence[int], paths: PackedStrings, masks: Iterable[str] = ()
) -> tuple[PackedStrings, str]:
    """Return the paths, which have these line numbers, with the extension of their files; "" or a note of the change.

    Names without an image's extension are searched in the manifest's folder and the folders directly inside it. A name
    that two files have is an error; one that no file has stays as it is. Masks are not among the files searched.
    """
    bare = {
        path
        for path in paths
        if not (is_image(path) or is_url(path)) and not os.path.isfile(os.path.join(folder, path))
    }
    if not bare:
        return paths, ""
    files: dict[str, list[str]] = {}
    no_images = {os.path.normpath(mask) for mask in masks}
    for file in _image_files(folder):
        if file in no_images:
            continue
        stem = os.path.splitext(file)[0]
        for written in {stem, os.path.basename(stem)}:
            files.setdefault(written, []).append(file)
    changed, example = 0, ""

    def complete() -> Iterator[str]:
        nonlocal changed, example
        for line, path in zip(lines, paths, strict=True):
            matching = files.get(os.path.normpath(path), []) if path in bare else []
            if len(matching) > 1:
                raise DataError(
                    f"{name}, line {line}: {printable(path)} could be any of {counted(len(matching), 'file')}.",
                    found=[printable(file) for file in sorted(matching)[:5]],
                    try_="a column with whole paths, such as path",
                )
            changed += len(matching)
            example = example or "".join(matching)
            yield matching[0] if matching else path

    completed = PackedStrings(complete())
    if not changed:
        return paths, ""
    return completed, f"{counted(changed, 'name')} without an extension found as files such as {example}"


def _image_files(folder: Path) -> list[str]:
    """Return the images in a folder and in the folders directly inside it, relative to it."""
    found = []
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir() and not is_system_file(entry.name):
            found += [f"{entry.name}/{inner}" for inner in sorted(os.listdir(entry.path)) if is_image(inner)]
        elif is_image(entry.name):
            found.append(entry.name)
    return [path for path in found if not is_system_file(os.path.basename(path))]


def check_files_exist(name: str, folder: Path, lines: Sequence[int], paths: PackedStrings, word: str = "image") -> None:
    """Raise an error that names the lines whose files are missing; "" is no file, and URLs are not requested."""
    root = str(folder)
    # a request for each of a million URLs would take longer than reading some of them and naming those that fail
    missing = [
        row
        for row, path in enumerate(paths)
        if path and not is_url(path) and not os.path.isfile(os.path.join(root, path))
    ]
    if missing:
        shown = [paths[row] for row in missing[:5]]
        tries = "paths are relative to the manifest's folder"
        if any("\\" in paths[row] for row in missing):
            tries += "; write / instead of \\"
        raise DataError(
            f"{name}: {len(missing):,} of {counted(sum(map(bool, paths)), word)} "
            f"{'is' if len(missing) == 1 else 'are'} not where the manifest says.",
            looked_in=str(folder),
            missing=[f"line {lines[row]}: {printable(path)}" for row, path in zip(missing, shown, strict=False)]
            + ([f"and {len(missing) - 5:,} more"] if len(missing) > 5 else []),
            try_=tries,
        )
