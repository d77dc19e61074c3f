"""Pictures of a split as they go into the page: small, embedded, through the chain that the model had them from."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from vitkit.data.decode import decode
from vitkit.data.sources.base import DataError, Split
from vitkit.data.transforms import Exact
from vitkit.errors import DecodeError
from vitkit.evaluate.evaluation import Mistake

SIDE = 176  # pixels that an embedded picture has at most along a side
SMALL = 64  # pictures up to this side are kept exact, as PNG
VIEWS = 8  # pictures shown before and after preprocessing
MISTAKES = 24


@dataclass(frozen=True)
class Embedded:
    source: str  # a data: address
    width: int
    height: int

    @property
    def tiny(self) -> bool:
        """Enlarged by the page, pixel by pixel."""
        return max(self.width, self.height) <= SMALL


@dataclass(frozen=True)
class View:
    key: str
    stored: Embedded  # upright, otherwise as it is
    seen: Embedded  # what the model gets


@dataclass(frozen=True)
class Look:
    """What the model sees of a picture, and the same with what it looks at aglow: (height, width, 3) each."""

    key: str
    seen: np.ndarray
    lit: np.ndarray


@dataclass(frozen=True)
class Shown:
    mistake: Mistake
    picture: Embedded | None  # None: it cannot be read again


def views(split: Split, exact: Exact, channels: int) -> list[View]:
    """Spread over the classes, broken ones passed over."""
    found = []
    for index in spread_over_classes(split):
        pixels = _pixels(split, index, channels)
        if pixels is not None:
            found.append(View(split.keys[index], embed(pixels), embed(_framed(exact, pixels))))
    return found


def spread_over_classes(split: Split) -> list[int]:
    """A few pictures, by number."""
    order = np.argsort(split.labels, kind="stable") if split.labels.ndim == 1 else np.arange(len(split))
    return order[np.linspace(0, len(order) - 1, min(VIEWS, len(order))).astype(int)].tolist()


def worst(mistakes: Sequence[Mistake], split: Split, exact: Exact, channels: int) -> list[Shown]:
    return [Shown(mistake, _of(mistake, split, exact, channels)) for mistake in mistakes[:MISTAKES]]


def _of(mistake: Mistake, split: Split, exact: Exact, channels: int) -> Embedded | None:
    # another split than the one that was scored has other pictures at the same places
    if mistake.index >= len(split) or split.keys[mistake.index] != mistake.key:
        return None
    pixels = _pixels(split, mistake.index, channels)
    return None if pixels is None else embed(_framed(exact, pixels))


def _pixels(split: Split, index: int, channels: int) -> np.ndarray | None:
    try:
        return decode(split.read(index), channels=channels)
    except (DecodeError, DataError):
        return None


def _framed(exact: Exact, pixels: np.ndarray) -> np.ndarray:
    return exact.frame(pixels).permute(1, 2, 0).numpy()


def embed(pixels: np.ndarray) -> Embedded:
    """(height, width, C) on 0 to 255 → at most SIDE pixels wide and high; of more bands than three the first three."""
    shown = pixels[:, :, 0] if pixels.shape[2] < 3 else pixels[:, :, :3]
    picture = Image.fromarray(np.ascontiguousarray(shown.round().clip(0, 255).astype(np.uint8)))
    picture.thumbnail((SIDE, SIDE), Image.Resampling.BICUBIC)
    exact = max(picture.size) <= SMALL
    file = io.BytesIO()
    picture.save(file, "PNG" if exact else "JPEG", **({} if exact else {"quality": 86}))
    kind = "png" if exact else "jpeg"
    content = base64.b64encode(file.getvalue()).decode("ascii")
    return Embedded(f"data:image/{kind};base64,{content}", picture.width, picture.height)
