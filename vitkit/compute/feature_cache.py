"""Cache features in a folder that any number of processes share, and evict the least recently used files.

Reading a file updates its time. Another process may remove a file at any moment: missing features are computed again,
and a file that cannot be written costs time, not results.

Shapes: n images, D width of the representation.
"""

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

MAX_BYTES = 8 * 2**30  # bytes: ImageNet's features from two models as wide as B/16
ABANDONED = 86_400  # seconds after which a half-written file is taken for one of a killed process

_OURS = re.compile(r"[0-9a-f]{32}\.npz")
_HALF_WRITTEN = re.compile(r"\.[0-9a-f]{32}\.npz\..+")


def read_cache(path: Path, images: int) -> tuple[NDArray[np.float32] | None, NDArray[np.bool_]]:
    """Return the cached features (n, D) and a mask of their images (n,); None and no image without a usable file."""
    with (
        contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile),
        np.load(path, allow_pickle=False) as stored,
    ):
        values, known = stored["values"], stored["known"]
        if (
            values.ndim == 2
            and values.dtype == np.float32
            and known.dtype == bool
            and (values.shape[:1] == known.shape == (images,))
        ):
            with contextlib.suppress(OSError):  # the folder may be read-only
                os.utime(path)
            return values, known
    return None, np.zeros(images, bool)


def write_cache(path: Path, values: NDArray[np.float32], known: NDArray[np.bool_]) -> None:
    """Write the features and evict files beyond MAX_BYTES; this file stays even if it is larger than that by itself."""
    with contextlib.suppress(VitkitError, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, values=values, known=known)
        _evict(path.parent, path.name)


def _evict(folder: Path, newest: str) -> None:
    cached: list[tuple[int, str, int]] = []  # last use, path, bytes
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat()
                if _OURS.fullmatch(entry.name):  # other files are neither counted nor removed
                    cached.append((status.st_mtime_ns, entry.path, status.st_size))
                elif _HALF_WRITTEN.fullmatch(entry.name) and time.time() - status.st_mtime > ABANDONED:
                    Path(entry.path).unlink(missing_ok=True)
    total = sum(size for _, _, size in cached)
    for _, path, size in sorted(cached):
        if total <= MAX_BYTES:
            return
        if Path(path).name != newest:
            with contextlib.suppress(OSError):  # Windows does not remove a file that is being read
                Path(path).unlink(missing_ok=True)
                total -= size
