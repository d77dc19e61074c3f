"""Small images inside a page, as data: URLs, and the choice of a split's images that are shown.

Shapes: (height, width, C) pixels on 0 to 255.
"""

import base64
import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from vitkit.data.decode import decode
from vitkit.data.sources.dataset import DataError, Split
from vitkit.data.sparse_labels import SparseLabels
from vitkit.errors import DecodeError

THUMBNAIL = 176  # pixels of an inline image along its longer side, at most
LOSSLESS = 64  # images up to this side are stored as PNG
SAMPLES = 8  # images of a split that are shown


@dataclass(frozen=True)
class InlineImage:
    """An image as an <img> element needs it."""

    data_url: str
    width: int
    height: int

    @property
    def pixelated(self) -> bool:
        """Return whether the page enlarges the image pixel by pixel."""
        return max(self.width, self.height) <= LOSSLESS


@dataclass(frozen=True)
class ImagePair:
    """Two versions of one image, shown one above the other."""

    key: str
    above: InlineImage
    below: InlineImage


def inline_image(pixels: np.ndarray, largest: int = THUMBNAIL, quality: int = 86) -> InlineImage:
    """Encode pixels as an image of at most `largest` pixels a side; of more than three channels the first three."""
    channels = pixels[:, :, 0] if pixels.shape[2] < 3 else pixels[:, :, :3]
    image = Image.fromarray(np.ascontiguousarray(channels.round().clip(0, 255).astype(np.uint8)))
    image.thumbnail((largest, largest), Image.Resampling.BICUBIC)
    lossless = max(image.size) <= LOSSLESS
    file = io.BytesIO()
    image.save(file, "PNG" if lossless else "JPEG", **({} if lossless else {"quality": quality}))
    content = base64.b64encode(file.getvalue()).decode("ascii")
    return InlineImage(f"data:image/{'png' if lossless else 'jpeg'};base64,{content}", image.width, image.height)


def sample_indices(split: Split) -> list[int]:
    """Return the indices of a few images that are spread over the classes."""
    labels = split.labels
    order = np.arange(len(split)) if isinstance(labels, SparseLabels) else np.argsort(labels, kind="stable")
    return order[np.linspace(0, len(order) - 1, min(SAMPLES, len(order))).astype(int)].tolist()


def decode_sample(split: Split, index: int, channels: int) -> np.ndarray | None:
    """Return the pixels of one image, or None if it is broken."""
    try:
        return decode(split.read(index), channels=channels)
    except (DecodeError, DataError):
        return None
