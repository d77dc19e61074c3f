"""An encoder's matrix products in bytes, on CPUs that multiply bytes (VNNI, AMX), through oneDNN inside torch.

Weights have a scale for each output. Activations are rounded as they come, with a scale for each token: nothing is
calibrated, pictures of any kind will do, and an answer does not depend on what else is in the batch. (One scale for
all, which most libraries take, changed a tenth of Ti/16's answers on Pets: after GELU a number can be 200 times those
of other tokens.) Patch embedding, attention's own products, pooling and head stay in float32; the weights that stay are
shared with the model, not copied.

Shapes: B batch, T tokens, D in, M out; a row is a token, R = B·T of them.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.model.build import Model
from vitkit.model.encoder import Block

GELU_LEAST = -0.1701  # the lowest value of GELU, tanh or exact: added to, no number is negative and all 8 bits serve
TINY = 1e-12  # a scale for rows of zeros


class Int8(nn.Module):
    """A linear layer's weights in bytes, packed for the kernel."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach()  # (M, D)
        self.scales = weight.abs().amax(dim=1).clamp_min(TINY) / 127  # (M,)
        rounded = (weight / self.scales[:, None]).round().to(torch.int8)
        self.sums = rounded.sum(dim=1) * self.scales  # (M,): what a row of ones would give
        self.packed = torch.ops.onednn.qlinear_prepack(rounded, None)
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)
        self.bias = layer.bias.detach()

    def product(self, rows: Tensor, zero: int) -> Tensor:
        """(R, D) uint8, in which `zero` stands for 0 → (R, M) float32."""
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            rows, 1.0, zero, self.packed, self.scales, self.zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return product

    def shaped(self, rows: Tensor, x: Tensor) -> Tensor:
        return rows.view(*x.shape[:-1], rows.shape[-1])


class ByToken(Int8):
    """A scale for each token, of numbers on both sides of 0."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        largest = torch.maximum(rows.amax(dim=1, keepdim=True), rows.amin(dim=1, keepdim=True).neg_())
        scales = largest.clamp_min_(TINY).div_(127)  # (R, 1)
        product = self.product(as_bytes(rows.mul(scales.reciprocal())), 128)
        return self.shaped(product.mul_(scales).add_(self.bias), x)


class AfterGelu(Int8):
    """A scale for each token, of numbers that are not below GELU's least. What comes in is written over."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer)
        self.bias = self.bias + GELU_LEAST * self.sums  # what raising the numbers has added is taken away

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        scales = rows.amax(dim=1, keepdim=True).sub_(GELU_LEAST).div_(255)  # (R, 1)
        steps = scales.reciprocal()
        product = self.product(as_bytes(rows.mul_(steps).add_(steps.mul_(-GELU_LEAST).sub_(128))), 0)
        return self.shaped(product.mul_(scales).add_(self.bias), x)


def as_bytes(numbers: Tensor) -> Tensor:
    """-128 … 127 → 0 … 255, rounded; by way of signed bytes, which torch makes four times as fast as unsigned ones.
    The numbers are written over."""
    return numbers.round_().to(torch.int8).view(torch.uint8).bitwise_xor_(128)


def in_bytes(model: Model) -> nn.Module:
    """A model whose blocks multiply bytes."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    quick = copy.deepcopy(model, shared)
    for part in quick.modules():
        if isinstance(part, Block):
            attention: Any = part.attention
            attention.qkv, attention.out = ByToken(attention.qkv), ByToken(attention.out)
            part.mlp = nn.Sequential(  # type: ignore[assignment]
                ByToken(part.mlp.up), _Gelu(), AfterGelu(part.mlp.down)
            )
    return quick


def applies(model: Model) -> bool:
    blocks = [part for part in model.modules() if isinstance(part, Block)]
    return bool(blocks) and all(block.is_plain for block in blocks)


class _Gelu(nn.Module):
    """The exact one for both: torch's tanh form takes seven times as long, and they differ by less than int8 rounds."""

    def forward(self, x: Tensor) -> Tensor:
        written_over: Tensor = torch.ops.aten.gelu_(x)
        return written_over
