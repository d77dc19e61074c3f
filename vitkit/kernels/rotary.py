"""Rotary positions on a packed projection, and their backward: one pass over memory in place, or the plain twin.

Shapes: B images, T tokens, N patches, H heads, d width of a head, W = H·d.
"""

import torch
from torch import Tensor

from vitkit.kernels.dispatch import TRITON, triton_applies
from vitkit.model.options import RotaryLayout
from vitkit.model.rotary import turn

if TRITON:
    from vitkit.kernels.rotary_triton import rotate


def turn_packed(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, layout: RotaryLayout) -> Tensor:
    """Return (B, T, 3·W) with the queries and keys of its last N tokens turned by tables (N, d), in place or not."""
    if _kernel_applies(qkv):
        rotate(qkv, cos, sin, heads, layout == "interleaved", inverse=False)
        return qkv
    return _turn_parts(qkv, cos, sin, heads, layout)


def turn_packed_back(grad: Tensor, cos: Tensor, sin: Tensor, heads: int, layout: RotaryLayout) -> tuple[Tensor, Tensor]:
    """Return the gradient before `turn_packed`, and its sum over tokens for queries and keys, (2·W,) float32."""
    if _kernel_applies(grad):
        sums = rotate(grad, cos, sin, heads, layout == "interleaved", inverse=True)
        return grad, sums.sum(dim=0)
    grad = _turn_parts(grad, cos, -sin, heads, layout)
    return grad, grad[..., : 2 * grad.shape[-1] // 3].sum(
        dim=(0, 1), dtype=torch.promote_types(grad.dtype, torch.float32)
    )


def _kernel_applies(packed: Tensor) -> bool:
    return triton_applies(packed) and not torch.compiler.is_compiling()  # which fuses it into the kernel before it


def _turn_parts(packed: Tensor, cos: Tensor, sin: Tensor, heads: int, layout: RotaryLayout) -> Tensor:
    width = packed.shape[-1] // 3
    both, value = packed.split([2 * width, width], dim=-1)
    both = both.unflatten(-1, (2 * heads, -1)).transpose(1, 2)  # (B, 2·H, T, d)
    return torch.cat([turn(both, cos, sin, layout).transpose(1, 2).flatten(2), value], dim=-1)
