"""Facts about a single image: format, size, whether it decodes, and a hash; cached by content.

They depend on the image's bytes alone, so the cache is keyed by the bytes' hash: a second check of the same data,
wherever it was moved, decodes nothing.
"""

import contextlib
import hashlib
import io
import json
import os
import sqlite3
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitkit.data.decode import decode, only_decode_errors
from vitkit.errors import DecodeError
from vitkit.stored_json import parse_json

VERSION = 2  # of the cached records; a new number starts a new cache


@dataclass(frozen=True, kw_only=True)
class ImageInfo:
    error: str | None = None  # why it cannot be decoded
    format: str = ""
    mode: str = ""
    turned: bool = False  # rotated or mirrored by its Exif orientation
    frames: int = 1
    height: int = 0
    width: int = 0
    pixels: str = ""  # hash of the decoded pixels: equal for identical images in any lossless format


def content_hash(content: bytes | memoryview | np.ndarray) -> str:
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(content, np.ndarray):
        digest.update(f"{content.dtype.str}{content.shape}".encode())
        content = np.ascontiguousarray(content).reshape(-1).view(np.uint8).data
    digest.update(content)
    return digest.hexdigest()


def read_image_info(content: bytes | np.ndarray, channels: int) -> ImageInfo:
    stored = {"format": "array", "mode": str(content.dtype)} if isinstance(content, np.ndarray) else _header(content)
    try:
        pixels = decode(content, channels=channels)
    except DecodeError as error:
        return ImageInfo(error=str(error).splitlines()[0], **stored)
    return ImageInfo(
        height=pixels.shape[0],
        width=pixels.shape[1],
        pixels=content_hash(pixels),
        **stored,
    )


def _header(content: bytes) -> dict[str, Any]:
    try:
        with only_decode_errors(), Image.open(io.BytesIO(content)) as image:
            return {
                "format": image.format or "",
                "mode": image.mode,
                "frames": getattr(image, "n_frames", 1),
                "turned": image.getexif().get(0x0112, 1) not in (0, 1),
            }
    except DecodeError:  # decoding reports the reason
        return {"format": "npy" if content[:6] == b"\x93NUMPY" else ""}


class ImageInfoCache:
    """A cache of image infos by content hash: a SQLite file that runs can share, or memory if it cannot be written."""

    def __init__(self, path: Path | None = None):
        self.new: dict[str, ImageInfo] = {}
        self.lock = threading.Lock()
        self.table: sqlite3.Connection | None = None
        try:
            path = path or default_cache_path()
            path.parent.mkdir(parents=True, exist_ok=True)
            self.table = sqlite3.connect(path, timeout=10, check_same_thread=False)
            self.table.execute("CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, record TEXT)")
        except (OSError, sqlite3.Error):
            self.table = None  # without a cache, a check takes longer but finds the same

    def lookup(self, content: bytes | np.ndarray, channels: int) -> ImageInfo:
        key = f"{VERSION}:{channels}:{content_hash(content)}"
        info = self._cached(key)
        if info is None:
            info = read_image_info(content, channels)
            with self.lock:
                self.new[key] = info
        return info

    def save(self) -> None:
        """Write what is new so far; other threads may call `lookup` meanwhile."""
        if self.table is None:
            return
        with self.lock:
            new, self.new = self.new, {}
        # failures are not cached: installing a decoder, or more memory, may fix them
        rows = [(key, json.dumps(asdict(info))) for key, info in new.items() if not info.error]
        with contextlib.suppress(sqlite3.Error), self.lock, self.table:
            self.table.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)

    def _cached(self, key: str) -> ImageInfo | None:
        if (info := self.new.get(key)) is not None or self.table is None:
            return info
        try:
            with self.lock:
                row = self.table.execute("SELECT record FROM facts WHERE key = ?", (key,)).fetchone()
            return parse_json(row[0], ImageInfo, "the cache") if row else None
        except (sqlite3.Error, ValueError, TypeError):
            return None


def default_cache_path() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "vitkit" / f"facts-{VERSION}.sqlite"
