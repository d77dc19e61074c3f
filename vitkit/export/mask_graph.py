"""Class scores of a patch grid → masks at the images' size, as operations of a graph for images of any size.

It equals `vitkit.compute.upsample.upsample_mask`, whose arithmetic it shares, as a test holds. A graph has no tiles, so
that memory is bounded otherwise: only a few classes are upsampled at a time, and the best so far are kept.

Shapes: B images, K classes, h' x w' grid of scores, h x w image.
"""

import torch
from torch import Tensor

from vitkit.compute.upsample import Size, upsample_tile

CLASSES = 4  # upsampled at a time: onnxruntime takes 1 GiB for 12 megapixels, however many classes there are


def upsample_masks(scores: Tensor, size: Size) -> Tensor:
    """Upsample scores (B, K, h', w') to `size` and return the class with the highest: (B, h, w) uint8.

    Of equal scores the lower class wins.
    """
    highest, masks = _best(scores[:, :CLASSES], size)
    for first in range(CLASSES, scores.shape[1], CLASSES):
        values, classes = _best(scores[:, first : first + CLASSES], size)
        masks = torch.where(values > highest, classes + first, masks)
        highest = torch.maximum(values, highest)
    return masks


def _best(scores: Tensor, size: Size) -> tuple[Tensor, Tensor]:
    """Return the highest of the upsampled scores (B, h, w), and its class, uint8."""
    each = upsample_tile(scores.flatten(0, 1), size, (0, size[0]), (0, size[1]))  # (B·K, h, w)
    upsampled = each.unflatten(0, (-1, scores.shape[1]))
    return upsampled.amax(dim=1), upsampled.argmax(dim=1).to(torch.uint8)
