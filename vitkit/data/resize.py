"""The only antialiased resize: Pillow's filters, in torch, so that every path gives the same values.

Shapes: B batch, C channels.
"""

import torch.nn.functional as F
from torch import Tensor

from vitkit.data.preprocessing import Interpolation

Size = tuple[int, int]  # height, width


def resize(images: Tensor, size: Size, filter: Interpolation) -> Tensor:
    """Resize (B, C, height, width) to (B, C, *size); uint8 or float, and the same dtype out."""
    if size[1] == 1:
        # torch 2.11 to 2.13 repeat the first row when a float result is one pixel wide; one pixel high is right
        resized = F.interpolate(images.float().mT, (1, size[0]), mode=filter, antialias=True).mT
        return resized if images.is_floating_point() else resized.round().clamp(0, 255).to(images.dtype)
    return F.interpolate(images, size, mode=filter, antialias=True)
