"""Names of the files of masks: those of the images, in the same folders, and never the same twice.

The mask of photos/a/cat.jpg is a/cat.png, as tools that look for masks beside images expect it. Where two images would
have the same, cat.jpg and cat.png for instance, both keep their ending: cat.jpg.png and cat.png.png. Names that differ
in upper and lower case only are the same on many disks, and count as the same here.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

from vitkit.data.sources.dataset import nfc
from vitkit.storage.urls import is_url

ENDING = ".png"
LONGEST = 240  # bytes of a name: file systems take 255


def relative_names(names: Sequence[str]) -> list[str]:
    """Return the names of images relative to the folder that all of them share, with "/" between folders."""
    parts = [_parts(name) for name in names]
    first, last = (min(parts), max(parts)) if parts else ([], [])  # what these share, all share
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first[:-1], last[:-1], strict=False)))
    return ["/".join(folders[shared:]) for folders in parts]


def mask_names(names: Sequence[str]) -> list[str]:
    """Return the name of the mask of each image, a different one for each."""
    relative = relative_names(names)
    short = [_limited(os.path.splitext(name)[0]) + ENDING for name in relative]
    counts = Counter(map(_folded, short))
    chosen = [
        own if counts[_folded(own)] == 1 else _limited(name) + ENDING for own, name in zip(short, relative, strict=True)
    ]
    return _distinct(chosen)


def _parts(name: str) -> list[str]:
    """Return the folders of an image and its name, without those that would lead out of a folder."""
    if is_url(name):
        name = name.partition("://")[2]
    elif not os.path.isabs(name) and ".." in name.replace("\\", "/").split("/"):
        name = os.path.abspath(name)
    return [part for part in name.replace(os.sep, "/").split("/") if part not in ("", ".", "..")] or ["image"]


def _limited(name: str) -> str:
    """Return a name whose last part fits a file system; a hash takes the place of what is cut off."""
    folder, _, last = name.rpartition("/")
    encoded = os.fsencode(last)
    if len(encoded) > LONGEST:
        digest = hashlib.blake2b(encoded, digest_size=6).hexdigest()
        last = f"{encoded[: LONGEST - 20].decode('utf-8', 'ignore')}-{digest}"
    return f"{folder}/{last}" if folder else last


def _distinct(names: list[str]) -> list[str]:
    """Return the names, those that came before with a number behind them."""
    taken: set[str] = set()
    for index, name in enumerate(names):
        stem, number = name.removesuffix(ENDING), 1
        while _folded(name) in taken:
            number += 1
            name = f"{stem}-{number}{ENDING}"
        taken.add(_folded(name))
        names[index] = name
    return names


def _folded(name: str) -> str:
    return nfc(name).casefold()
