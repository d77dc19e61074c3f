"""Features that were computed before, in a folder that any number of processes share; the longest unused go first.

A file is touched whenever it is recalled, so its time is that of its last use. Every step may find that another process
was faster: a file that is gone is computed anew, and one that cannot be kept costs time, not answers.

Shapes: n pictures, D width of the representation.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitkit.atomic import replacing
from vitkit.errors import VitkitError

MOST = 8 * 2**30  # bytes: ImageNet's features from two models as wide as B/16
ABANDONED = 86_400  # seconds after which a file half written is taken for one whose process was killed

_OURS = re.compile(r"[0-9a-f]{32}\.npz")
_HALF_WRITTEN = re.compile(r"\.[0-9a-f]{32}\.npz\..+")


def recall(path: Path, pictures: int) -> tuple[NDArray[np.float32] | None, NDArray[np.bool_]]:
    """What was remembered (n, D) and of which pictures (n,); None and no picture where that is damaged or missing."""
    with (
        contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile),
        np.load(path, allow_pickle=False) as stored,
    ):
        values, known = stored["values"], stored["known"]
        if (
            values.ndim == 2
            and values.dtype == np.float32
            and known.dtype == bool
            and (values.shape[:1] == known.shape == (pictures,))
        ):
            with contextlib.suppress(OSError):  # a folder of somebody else's that may only be read
                os.utime(path)
            return values, known
    return None, np.zeros(pictures, bool)


def remember(path: Path, values: NDArray[np.float32], known: NDArray[np.bool_]) -> None:
    """And forget what exceeds MOST; this file stays even where it is larger than that by itself."""
    with contextlib.suppress(VitkitError, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, values=values, known=known)
        _forget(path.parent, path.name)


def _forget(folder: Path, newest: str) -> None:
    kept: list[tuple[int, str, int]] = []  # last use, path, bytes
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat()
                if _OURS.fullmatch(entry.name):  # whatever else lies here is not ours to count or to remove
                    kept.append((status.st_mtime_ns, entry.path, status.st_size))
                elif _HALF_WRITTEN.fullmatch(entry.name) and time.time() - status.st_mtime > ABANDONED:
                    Path(entry.path).unlink(missing_ok=True)
    total = sum(size for _, _, size in kept)
    for _, path, size in sorted(kept):
        if total <= MOST:
            return
        if Path(path).name != newest:
            with contextlib.suppress(OSError):  # somebody reads it, where that keeps a file from being removed
                Path(path).unlink(missing_ok=True)
                total -= size
