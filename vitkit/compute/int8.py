"""int8 inference on CPUs that multiply bytes (VNNI, AMX), through oneDNN inside torch.

The linear layers of the encoder's blocks are quantized dynamically. Weights have a scale for each output. Activations
have a scale for each token: nothing is calibrated, images of any kind will do, and a prediction does not depend on the
rest of the batch. (One scale per tensor, which most libraries use, changed a tenth of Ti/16's predictions on Pets:
after GELU, an activation can be 200 times those of other tokens.) Patch embedding, pooling and head stay in float32;
their weights are shared with the model, not copied. So do the products inside attention, a quarter of the time that is
left, unless the CPU multiplies bf16.

Shapes: B batch, T tokens, D in, M out, H heads, d = D / H, Q query tokens; a row is a token, R = B·T of them.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.compute.fold import fold_blocks
from vitkit.kernels.fuse import KNOWN_BLOCK, FusedAttention, first_hook, fuse, fused_module
from vitkit.model.allow_list import allow
from vitkit.model.attention import AttentionPositions
from vitkit.model.build import Model, shared_copy
from vitkit.model.encoder import Block
from vitkit.model.mlp import Mlp, SwiGlu, apply_gelu, apply_swiglu
from vitkit.torch_private import gelu_, has_int8_linear, int8_linear, pack_int8

GELU_MIN = -0.1701  # no kind of GELU goes below: subtracted, nothing is negative and all 8 bits are used
TINY = 1e-12  # a scale for rows of zeros

SUPPORTED = allow(
    "int8 inference",
    vit="depth width mlp heads patch stem image channels classes positions inject pool class_token representation "
    "norm axial gelu eps dropout stochastic_depth "
    "patch_bias class_position distillation registers projection normalise ln_pre "
    "query_bias key_bias value_bias swiglu layer_scale rotary rotary_base rotary_layout seeds",
    plain="content induced",
    conv="layers width preactivation standardise_eps standardise_on norm_eps attention",
    only={"attention": (None,), "gelu": ("tanh", "exact", "quick")},
    modules=KNOWN_BLOCK,
)


def reason_to_decline(model: Model) -> str | None:
    """Return why a model cannot be quantized here as a sentence, or None."""
    if not has_int8_linear():
        return "int8 inference needs a torch with oneDNN"
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    if reason := SUPPORTED.reason_to_decline(model.config, *blocks):
        return reason
    hooked = next(filter(None, map(first_hook, blocks)), None)
    return None if hooked is None else f"{SUPPORTED.consumer} does not call the hooks on {hooked} of a block"


def quantize_blocks(model: Model, *, bf16_attention: bool = False) -> nn.Module:
    """Return a model whose blocks multiply in int8, and attention in bf16 if asked; it shares all other weights."""
    quantized = shared_copy(model)
    fold_blocks(quantized)
    fuse(quantized, class_token_only=True)
    for module in quantized.modules():
        if isinstance(module, Block):
            if bf16_attention:
                module.attention = fused_module(Bf16Attention, module.attention)
            attention: Any = module.attention
            attention.qkv, attention.out = PerTokenInt8Linear(attention.qkv), PerTokenInt8Linear(attention.out)
            module.mlp = _quantize_mlp(module.mlp)
    return quantized


def _quantize_mlp(mlp: Mlp | SwiGlu) -> nn.Sequential:
    if isinstance(mlp, SwiGlu):
        return nn.Sequential(PerTokenInt8Linear(mlp.gate_up), _SwiGluActivation(), PerTokenInt8Linear(mlp.down))
    gelu = _SigmoidGelu() if mlp.gelu == "quick" else _InplaceGelu()
    return nn.Sequential(PerTokenInt8Linear(mlp.up), gelu, AfterGeluInt8Linear(mlp.down))


class Bf16Attention(FusedAttention):
    """Attention whose products are in bf16, in 0.7 of the time of torch's own, which bf16 makes no faster (in 2.13)."""

    def forward(
        self,
        x: Tensor,
        positions: AttentionPositions | None = None,
        queries: int | None = None,
        gamma: Tensor | None = None,
    ) -> Tensor:
        """(B, T, D) → the same, or the output of the first `queries` tokens only: (B, Q, D)."""
        if positions is not None or gamma is not None:
            return super().forward(x, positions, queries, gamma)
        qkv = self.qkv(x).bfloat16().unflatten(-1, (3, self.heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4).contiguous().unbind(0)  # (B, H, T, d)
        scores = query[:, :, :queries].mul(query.shape[-1] ** -0.5) @ key.transpose(-1, -2)  # (B, H, Q, T)
        mixed = scores.softmax(dim=-1) @ value  # (B, H, Q, d)
        return self.out(mixed.transpose(1, 2).flatten(2).float())


class Int8Linear(nn.Module):
    """A linear layer with int8 weights, packed for oneDNN's kernel."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach()  # (M, D)
        self.scales = weight.abs().amax(dim=1).clamp_min(TINY) / weight_levels()  # (M,)
        rounded = (weight / self.scales[:, None]).round().to(torch.int8)
        self.sums = rounded.sum(dim=1) * self.scales  # (M,): the product with a row of ones
        self.packed = pack_int8(rounded)
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)
        self.bias = layer.bias.detach()

    def product(self, rows: Tensor, zero_point: int) -> Tensor:
        """(R, D) uint8 → (R, M) float32."""
        return int8_linear(rows, zero_point, self.packed, self.scales, self.zeros)

    def scaled(self, product: Tensor, scales: Tensor, x: Tensor) -> Tensor:
        """(R, M) products and the scales (R, 1) of their rows → outputs in the shape of x's tokens; in place."""
        return torch.addcmul(self.bias, product, scales, out=product).view(*x.shape[:-1], product.shape[-1])


class PerTokenInt8Linear(Int8Linear):
    """An int8 layer for activations of both signs, with a scale for each token."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        largest = torch.maximum(rows.amax(dim=1, keepdim=True), rows.amin(dim=1, keepdim=True).neg_())
        scales = largest.clamp_min_(TINY).div_(127)  # (R, 1)
        return self.scaled(self.product(to_uint8(rows.mul(scales.reciprocal())), 128), scales, x)


class AfterGeluInt8Linear(Int8Linear):
    """An int8 layer for activations not below GELU's minimum, with a scale for each token; it overwrites its input."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer)
        self.bias = self.bias + GELU_MIN * self.sums  # undoes the shift of the activations

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        scales = rows.amax(dim=1, keepdim=True).sub_(GELU_MIN).div_(255)  # (R, 1)
        steps = scales.reciprocal()
        return self.scaled(self.product(to_uint8(rows.mul_(steps).add_(steps.mul(-GELU_MIN).sub_(128))), 0), scales, x)


class _InplaceGelu(nn.Module):
    """The exact GELU for both forms: torch's tanh takes seven times as long, and differs by less than int8 rounds."""

    def forward(self, x: Tensor) -> Tensor:
        return gelu_(x)


class _SigmoidGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return apply_gelu(x, "quick")


class _SwiGluActivation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return apply_swiglu(x)


def to_uint8(x: Tensor) -> Tensor:
    """Round -128 … 127 and shift it to 0 … 255; the input is overwritten.

    It goes through signed bytes, which torch makes four times as fast as unsigned ones.
    """
    return x.round_().to(torch.int8).view(torch.uint8).bitwise_xor_(128)


@cache
def weight_levels() -> int:
    """Return the largest quantized weight: 127, or 64 where oneDNN adds pairs of products in 16 bits.

    Without VNNI it does, and saturates: 2 · 255 · 127 is more than 16 bits hold, 2 · 255 · 64 is not.
    """
    weight, row = torch.full((1, 2), 127, dtype=torch.int8), torch.full((1, 2), 255, dtype=torch.uint8)
    packed = pack_int8(weight)
    product = int8_linear(row, 0, packed, torch.ones(1), torch.zeros(1, dtype=torch.int64))
    return 127 if product.item() == 2 * 255 * 127 else 64
