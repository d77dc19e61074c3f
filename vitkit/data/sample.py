"""One decoded sample of a split: the pixels of an image, with its mask as the last channel where there is one."""

import numpy as np

from vitkit.data.decode import decode
from vitkit.data.masked_transforms import join_mask
from vitkit.data.sources.dataset import Split


def decode_sample(split: Split, index: int, channels: int, *, masks: bool = False) -> np.ndarray:
    """Return an image (h, w, channels), with `masks` followed by its mask: (h, w, channels + 1)."""
    pixels = decode(split.read(index), channels=channels)
    if not masks:
        return pixels
    mask = split.read_mask(index, (pixels.shape[0], pixels.shape[1]))
    return join_mask(pixels, mask)
