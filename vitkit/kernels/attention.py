"""Self-attention from its input to what it mixes, with a backward that keeps query, key and value together.

PyTorch returns their gradients as three tensors, which then have to be copied into one and summed once more for the
bias: a third on top of the attention itself. Here one pass writes the one tensor and its sums.

Shapes: B pictures, T tokens, H heads, d width of a head, W = H·d.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.kernels.dispatch import TRITON, check_single, either, fusable, has_bf16
from vitkit.kernels.forward import product

if TRITON:
    from vitkit.kernels.attention_triton import attention_backward, attention_backward_operator

WIDTHS = (32, 64)  # of a head, that the backward is written for
CUDNN = torch.version.cuda is not None and torch.backends.cudnn.is_available()  # builds for ROCm say they have it


def mix(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q·k / √d + bias) · v: (B, H, T, d) each."""
    if bias is None and _suits_cudnn(query, key):
        return _cudnn(query, key, value, logs=torch.is_grad_enabled())[0]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)


def _suits_cudnn(query: Tensor, key: Tensor) -> bool:
    """For the short sequences of pictures cuDNN is the fastest. torch takes it last, and in a compiled graph never."""
    d = query.shape[-1]
    suits = query.dtype == torch.bfloat16 and key.shape[2] > 1 and d % 8 == 0 and d <= 128
    if not (CUDNN and suits and query.is_cuda and has_bf16(query.device)):
        return False
    # what somebody has switched off for a while, which a compiled graph cannot ask
    return torch.compiler.is_compiling() or (torch.backends.cudnn.enabled and torch.backends.cuda.cudnn_sdp_enabled())


def _cudnn(query: Tensor, key: Tensor, value: Tensor, *, logs: bool) -> tuple[Tensor, Tensor]:
    """What attention gives, and for the way back the logarithm of each row's sum: (B, H, T, 1)."""
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(query, key, value, None, logs)
    return found[0], found[1]


def split(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """(B, T, 3·W) → query, key and value: (B, H, T, d) each."""
    query, key, value = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    return query, key, value


def attends(x: Tensor, heads: int) -> bool:
    """Whether `attend` is for this: it gains in training alone."""
    return (
        fusable(x)
        and (CUDNN or not x.is_cuda)
        and torch.is_grad_enabled()
        and x.shape[1] > 1
        and x.shape[-1] // heads in WIDTHS
    )


def attend(x: Tensor, weight: Tensor, bias: Tensor, heads: int, *, fp8: bool = False) -> Tensor:
    """(B, T, W) → the same: projected to query, key and value with weight (3·W, W) and bias (3·W,), then mixed. With
    fp8 the projection is a product of 8-bit numbers."""
    mixed: Tensor = _Attend.apply(x, weight, bias, heads, fp8)
    return mixed


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, heads: int, fp8: bool) -> Tensor:
        qkv = product(x, weight, bias, fp8)
        mixed, logs = _mix_for_backward(*split(qkv, heads))
        mixed = mixed.transpose(1, 2).flatten(2)
        ctx.save_for_backward(x, weight, qkv, mixed, logs)
        return mixed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        check_single("attention")
        x, weight, qkv, mixed, logs = ctx.saved_tensors
        run = either(attention_backward_operator, attention_backward)
        found, sums = run(grad.contiguous(), qkv, mixed, logs)
        rows = found.flatten(0, 1)  # (B·T, 3·W)
        return (rows @ weight).view_as(x), rows.t() @ x.flatten(0, 1), sums.sum(dim=0).to(weight.dtype), None, None


def _mix_for_backward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """What attention gives, and the logarithm of each row's sum (B, H, T)."""
    if query.is_cuda:
        mixed, logs = _cudnn(query, key, value, logs=True)
        return mixed, logs.squeeze(-1)
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    return scores.softmax(dim=-1) @ value, scores.logsumexp(dim=-1).float()
