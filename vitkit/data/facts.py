"""What can be said of a single picture: how it is stored, whether it is whole, what it looks like. Kept by content.

A picture's facts depend on its bytes alone, so they are remembered under the bytes' hash: a second look at the same
data, wherever it has been moved, decodes nothing.
"""

from __future__ import annotations

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
import torch
from PIL import Image

from vitkit.data.decode import decode
from vitkit.data.resize import resize
from vitkit.errors import DecodeError

VERSION = 1  # of the facts: a change here forgets what was remembered
THUMBNAIL = 16


@dataclass(frozen=True, kw_only=True)
class Facts:
    error: str | None = None  # why it cannot be decoded
    format: str = ""
    mode: str = ""
    turned: bool = False  # stored sideways or mirrored, put upright by Exif
    frames: int = 1
    height: int = 0
    width: int = 0
    pixels: str = ""  # hash of the decoded pixels: equal for identical pictures in any lossless coat
    thumbnail: str = ""  # 16 x 16 grey levels, as hex


def content_hash(content: bytes | np.ndarray) -> str:
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(content, np.ndarray):
        digest.update(f"{content.dtype.str}{content.shape}".encode())
        content = content.tobytes()
    digest.update(content)
    return digest.hexdigest()


def find_facts(content: bytes | np.ndarray, channels: int) -> Facts:
    stored = {"format": "array", "mode": str(content.dtype)} if isinstance(content, np.ndarray) else _storage(content)
    try:
        pixels = decode(content, channels=channels)
    except DecodeError as error:
        return Facts(error=str(error).splitlines()[0], **stored)
    grey = torch.from_numpy(pixels).float().mean(dim=2)[None, None]
    small = resize(grey, (THUMBNAIL, THUMBNAIL), "bilinear").round().clamp(0, 255).byte()
    return Facts(
        height=pixels.shape[0],
        width=pixels.shape[1],
        pixels=content_hash(pixels),
        thumbnail=small.numpy().tobytes().hex(),
        **stored,
    )


def _storage(content: bytes) -> dict[str, Any]:
    try:
        with Image.open(io.BytesIO(content)) as picture:
            return {
                "format": picture.format or "",
                "mode": picture.mode,
                "frames": getattr(picture, "n_frames", 1),
                "turned": picture.getexif().get(0x0112, 1) not in (0, 1),
            }
    except Exception:  # whatever is wrong, decoding names it
        return {"format": "npy" if content[:6] == b"\x93NUMPY" else ""}


class Memory:
    """Facts by content hash, in a file that any number of runs may share; without a place to keep it, in none."""

    def __init__(self, path: Path | None = None):
        self.new: dict[str, Facts] = {}
        self.lock = threading.Lock()
        self.table: sqlite3.Connection | None = None
        try:
            path = path or default_place()
            path.parent.mkdir(parents=True, exist_ok=True)
            self.table = sqlite3.connect(path, timeout=10, check_same_thread=False)
            self.table.execute("CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, record TEXT)")
        except (OSError, sqlite3.Error):
            self.table = None  # a memory that cannot be kept costs time, not answers

    def look_up(self, content: bytes | np.ndarray, channels: int) -> Facts:
        key = f"{VERSION}:{channels}:{content_hash(content)}"
        facts = self._recall(key)
        if facts is None:
            facts = find_facts(content, channels)
            with self.lock:
                self.new[key] = facts
        return facts

    def save(self) -> None:
        """What is new so far; others may be looking up meanwhile."""
        if self.table is None:
            return
        with self.lock:
            new, self.new = self.new, {}
        # failures are not remembered: a reader that is installed later, or more memory, may mend them
        rows = [(key, json.dumps(asdict(facts))) for key, facts in new.items() if not facts.error]
        with contextlib.suppress(sqlite3.Error), self.lock, self.table:
            self.table.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)

    def _recall(self, key: str) -> Facts | None:
        if (found := self.new.get(key)) is not None or self.table is None:
            return found
        try:
            with self.lock:
                row = self.table.execute("SELECT record FROM facts WHERE key = ?", (key,)).fetchone()
            return Facts(**json.loads(row[0])) if row else None
        except (sqlite3.Error, ValueError, TypeError):
            return None


def default_place() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "vitkit" / f"facts-{VERSION}.sqlite"
