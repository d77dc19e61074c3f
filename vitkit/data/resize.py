"""The only antialiased resize: Pillow's filters, in torch, so that every path gives the same values.

Shapes: B batch, C channels.
"""

import torch.nn.functional as F
from torch import Tensor

from vitkit.data.preprocessing import Interpolation

Size = tuple[int, int]  # height, width
# pixels between the two passes, columns first: an image of 1 x 50,000,000 pixels would widen to 134 GB. Rows go first
# in an image that would have more, one at least 200,000 pixels high
MAX_BETWEEN = 50_000_000


def resize(images: Tensor, size: Size, filter: Interpolation, *, bytes: bool = False) -> Tensor:
    """Resize (B, C, height, width) to (B, C, *size); uint8 or float, and the same dtype out.

    bytes   round floats to whole numbers of 0 to 255 after each of the two passes, columns first, as Pillow does
    """
    if images.shape[-1] < size[1] and images.shape[-2] * size[1] > MAX_BETWEEN:
        images = _interpolate(images, (size[0], images.shape[-1]), filter)
    if bytes and images.is_floating_point():
        across = as_bytes(_interpolate(images, (images.shape[-2], size[1]), filter))
        return as_bytes(_interpolate(across, size, filter))
    return _interpolate(images, size, filter)


def as_bytes(values: Tensor) -> Tensor:
    """Round floats as Pillow's integers are, halves up, and clamp them to 0 to 255.

    A sum in float32 ends a little beside the half that it is in exact arithmetic, in each runtime on another side; the
    share of a grey level that is added here is larger than that.
    """
    return (values + (0.5 + 1e-4)).floor().clamp(0, 255)


def _interpolate(images: Tensor, size: Size, filter: Interpolation) -> Tensor:
    if tuple(images.shape[-2:]) == size:
        return images
    if size[1] == 1:
        # torch 2.11 to 2.13 repeat the first row when a float result is one pixel wide; one pixel high is right
        resized = F.interpolate(images.float().mT, (1, size[0]), mode=filter, antialias=True).mT
        return resized if images.is_floating_point() else resized.round().clamp(0, 255).to(images.dtype)
    return F.interpolate(images, size, mode=filter, antialias=True)
