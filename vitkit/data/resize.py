"""The only antialiased resize: Pillow's filters, in torch, so that every path gives the same values.

Shapes: B batch, C channels.
"""

import torch.nn.functional as F
from torch import Tensor

from vitkit.data.preprocessing import Interpolation

Size = tuple[int, int]  # height, width


def resize(images: Tensor, size: Size, filter: Interpolation, *, clamp: bool = False) -> Tensor:
    """Resize (B, C, height, width) to (B, C, *size); uint8 or float, and the same dtype out.

    clamp   keep floats in 0 to 255 after each of the two passes, as Pillow's bytes are: bicubic overshoots at hard
            edges, and what the first pass overshoots would spread in the second
    """
    if clamp and filter == "bicubic" and images.is_floating_point():
        across = _interpolate(images, (images.shape[-2], size[1]), filter).clamp(0, 255)  # Pillow's order
        return _interpolate(across, size, filter).clamp(0, 255)
    return _interpolate(images, size, filter)


def _interpolate(images: Tensor, size: Size, filter: Interpolation) -> Tensor:
    if tuple(images.shape[-2:]) == size:
        return images
    if size[1] == 1:
        # torch 2.11 to 2.13 repeat the first row when a float result is one pixel wide; one pixel high is right
        resized = F.interpolate(images.float().mT, (1, size[0]), mode=filter, antialias=True).mT
        return resized if images.is_floating_point() else resized.round().clamp(0, 255).to(images.dtype)
    return F.interpolate(images, size, mode=filter, antialias=True)
