"""Self-attention from its input to the mixed values, with a backward that keeps query, key and value packed.

PyTorch returns their gradients as three tensors, which have to be copied into one and summed once more for the bias: a
third on top of the attention itself. Here one kernel writes the packed gradient and its sums.

Shapes: B images, T tokens, H heads, d width of a head, W = H·d.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.kernels.dispatch import TRITON, forbid_double_backward, operator_or_function, supports_bf16, triton_applies
from vitkit.kernels.forward import linear
from vitkit.kernels.rotary import turn_packed, turn_packed_back
from vitkit.model.attention import split_heads
from vitkit.model.options import RotaryLayout
from vitkit.model.rotary import RotaryPositions
from vitkit.torch_private import cudnn_attention

if TRITON:
    from vitkit.kernels.attention_triton import attention_backward

HEAD_WIDTHS = (32, 64)  # that the backward kernel is written for
CUDNN = torch.version.cuda is not None and torch.backends.cudnn.is_available()  # ROCm builds claim it


def sdpa(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q·k / √d + bias) · v: (B, H, T, d) each."""
    if bias is None and _cudnn_applies(query, key):
        return cudnn_attention(query, key, value, with_lse=torch.is_grad_enabled())[0]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)


def _cudnn_applies(query: Tensor, key: Tensor) -> bool:
    """Return whether cuDNN applies: the fastest for short sequences, which torch tries last and, compiled, never."""
    d = query.shape[-1]
    suits = query.dtype == torch.bfloat16 and key.shape[2] > 1 and d % 8 == 0 and d <= 128
    if not (CUDNN and suits and query.is_cuda and supports_bf16(query.device)):
        return False
    # respect switches that somebody has turned off, which a compiled graph cannot read
    return torch.compiler.is_compiling() or (torch.backends.cudnn.enabled and torch.backends.cuda.cudnn_sdp_enabled())


def can_fuse_attention(x: Tensor, heads: int) -> bool:
    """Return whether `fused_attention` applies; it gains in training only."""
    return (
        triton_applies(x)
        and (CUDNN or not x.is_cuda)
        and torch.is_grad_enabled()
        and x.shape[1] > 1
        and x.shape[-1] // heads in HEAD_WIDTHS
    )


def split_turned_heads(qkv: Tensor, heads: int, rotary: RotaryPositions | None) -> tuple[Tensor, Tensor, Tensor]:
    """(B, T, 3·W) → query and key, turned by rotary positions, and value, (B, H, T, d) each; `qkv` is used up."""
    if rotary is not None:
        qkv = turn_packed(qkv, rotary.cos, rotary.sin, heads, rotary.layout)
    return split_heads(qkv, heads)


def fused_attention(
    x: Tensor, weight: Tensor, bias: Tensor, heads: int, *, rotary: RotaryPositions | None = None, fp8: bool = False
) -> Tensor:
    """Project (B, T, W) with weight (3·W, W) and bias (3·W,), in fp8 if asked for, and attend: (B, T, W)."""
    tables = (None, None, "half") if rotary is None else (rotary.cos, rotary.sin, rotary.layout)
    mixed: Tensor = _FusedAttention.apply(x, weight, bias, *tables, heads, fp8)
    return mixed


class _FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        cos: Tensor | None,
        sin: Tensor | None,
        layout: RotaryLayout,
        heads: int,
        fp8: bool,
    ) -> Tensor:
        qkv = linear(x, weight, bias, fp8)
        if cos is not None and sin is not None:
            qkv = turn_packed(qkv, cos, sin, heads, layout)
        mixed, lse = _attention_with_lse(*split_heads(qkv, heads))
        mixed = mixed.transpose(1, 2).flatten(2)
        ctx.save_for_backward(x, weight, qkv, mixed, lse, cos, sin)
        ctx.layout = layout
        return mixed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        forbid_double_backward("attention")
        x, weight, qkv, mixed, lse, cos, sin = ctx.saved_tensors
        run = operator_or_function(attention_backward)
        grad_qkv, sums = run(grad.contiguous(), qkv, mixed, lse)
        grad_bias = sums.sum(dim=0)
        if cos is not None:
            grad_qkv, turned = turn_packed_back(grad_qkv, cos, sin, lse.shape[1], ctx.layout)
            grad_bias = torch.cat([turned, grad_bias[len(turned) :]])
        rows = grad_qkv.flatten(0, 1)  # (B·T, 3·W)
        grad_weight = rows.t() @ x.flatten(0, 1)
        return (rows @ weight).view_as(x), grad_weight, grad_bias.to(weight.dtype), *[None] * 5


def _attention_with_lse(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the attention output and the log-sum-exp of each row (B, H, T)."""
    if query.is_cuda:
        mixed, lse = cudnn_attention(query, key, value, with_lse=True)
        return mixed, lse.squeeze(-1)
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    return scores.softmax(dim=-1) @ value, scores.logsumexp(dim=-1).float()
