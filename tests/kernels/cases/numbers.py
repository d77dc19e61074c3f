"""Random numbers, plain versions and tolerances that the cases of all kernels share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import vitkit
from vitkit.kernels.dispatch import INTERPRETED
from vitkit.train.objectives.labels import Labels

DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPE = torch.float32 if INTERPRETED else torch.bfloat16
TOLERANCE = {"atol": 2e-5, "rtol": 2e-4} if INTERPRETED else {"atol": 2e-2, "rtol": 2e-2}


def random(*shape: int, grad: bool = False) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(DTYPE).requires_grad_(grad)


def plain_activation(x: Tensor, kind: str) -> Tensor:
    if kind == "swiglu":
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up
    return (
        x * torch.sigmoid(1.702 * x) if kind == "quick" else F.gelu(x, approximate="tanh" if kind == "tanh" else "none")
    )


def in_float32(*tensors: Tensor) -> list[Tensor]:
    """The same numbers in float32, with gradients of their own."""
    return [tensor.detach().float().requires_grad_(tensor.requires_grad) for tensor in tensors]


def layer_norm(width: int) -> torch.nn.LayerNorm:
    layer = torch.nn.LayerNorm(width, eps=1e-6)
    torch.nn.init.normal_(layer.weight, 1.0)
    torch.nn.init.normal_(layer.bias)
    return layer.to(DEVICE, DTYPE).requires_grad_(False)


def small_objective() -> Labels:
    model = vitkit.create("mu/4", image=8, classes=5, depth=1)
    torch.nn.init.normal_(model.head.logits.weight)  # else only these would have a gradient
    return Labels(model, multilabel=False, smoothing=0.0, weights=None).to(DEVICE)
