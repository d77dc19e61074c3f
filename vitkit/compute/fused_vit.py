"""A plain ViT's forward pass with few passes over memory: written for GPUs, the same anywhere.

Between matrix products there is nothing but LayerNorm. A product adds into the residual stream itself, in place; its
bias is not added at all, but all biases up to a LayerNorm are one vector, which the norm adds as it reads. GELU is
applied by the product before it. With 8-bit products, which cannot add, LayerNorm takes the branch in and rounds what
it gives, and so does GELU. Of the last block only the tokens that are wanted are computed, as in the model.

Shapes: B pictures, T tokens, R = B·T rows, D width, M hidden width, K classes.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.kernels.attention import mix, split
from vitkit.kernels.forward import Rounded, gelu_rounded, norm, norm_rounded, round_rows, rounded_product, up
from vitkit.model.build import Model
from vitkit.model.encoder import Block
from vitkit.model.vit import VisionTransformer


def applies(model: Model) -> bool:
    """To the paper's encoder, with its own layers in it: norm before each part, absolute positions added once, all
    tokens in one line."""
    if not isinstance(model, VisionTransformer):
        return False
    config = model.config
    return (
        config.norm == "pre"
        and not config.axial
        and config.positions != "relative"
        and config.inject == "stem"
        and all(isinstance(block, Block) and block.is_plain for block in model.encoder.blocks)
    )


def roundable(model: VisionTransformer) -> bool:
    """Whether GPUs multiply its matrices in 8 bits, which they do by sixteens."""
    return model.config.width % 16 == 0 and model.config.mlp % 16 == 0


class Quick(nn.Module):
    """A copy of the model that answers: pictures (B, C, height, width) → logits (B, K), float32."""

    shift: Tensor

    def __init__(self, model: VisionTransformer, numbers: torch.dtype = torch.bfloat16, *, rounded: bool = False):
        super().__init__()
        whole = copy.deepcopy(model)
        whole.head.float()
        for part in (whole.stem, whole.patches, whole.encoder, whole.pool):
            if part is not None:
                part.to(numbers)
        if whole.class_token is not None:
            whole.class_token.data = whole.class_token.data.to(numbers)
        self.whole, self.numbers = whole.eval().requires_grad_(False), numbers
        encoder = whole.encoder
        self.blocks = nn.ModuleList()
        shift = torch.zeros(model.config.width, device=encoder.blocks[0].mlp.down.bias.device)
        for block in encoder.blocks:
            if rounded:
                self.blocks.append(RoundedBlock(block))
            else:
                self.blocks.append(QuickBlock(block, shift))
                shift = shift + block.attention.out.bias.float() + block.mlp.down.bias.float()
        self.register_buffer("shift", shift)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.whole.head(self.represent(images))
        return logits

    def represent(self, images: Tensor) -> Tensor:
        """(B, D), float32."""
        whole = self.whole
        whole.check_images(images)
        x = whole.tokens(whole.embed(images.to(self.numbers)))  # (B, T, D)
        x = whole.encoder.place(x)
        b, t, _ = x.shape
        wanted = whole.wanted({})
        state: Any = x.flatten(0, 1), None
        for place, block in enumerate(self.blocks):
            state = block(*state, t, wanted if place == len(self.blocks) - 1 else None)
        stream, branch = state
        stream = stream if branch is None else stream + branch
        final = whole.encoder.norm
        encoded = norm(stream, self.shift, final) if isinstance(final, nn.LayerNorm) else stream + self.shift
        pooled = whole.pool(encoded.to(self.numbers).unflatten(0, (b, -1)))
        return whole.head.represent(pooled.float())


class QuickBlock(nn.Module):
    before_attention: Tensor
    before_mlp: Tensor

    def __init__(self, block: Block, shift: Tensor):
        super().__init__()
        self.block = block
        self.tanh = block.mlp.approximate == "tanh"
        self.register_buffer("before_attention", shift)
        self.register_buffer("before_mlp", shift + block.attention.out.bias.float())

    def forward(self, stream: Tensor, branch: None, tokens: int, wanted: int | None) -> tuple[Tensor, None]:
        """(R, D), written over where all tokens are wanted → the same, or as many rows as are."""
        attention, mlp = self.block.attention, self.block.mlp
        normed = norm(stream, self.before_attention, self.block.attention_norm)
        qkv = torch.addmm(attention.qkv.bias, normed, attention.qkv.weight.t())
        mixed = attended(qkv, tokens, attention.heads, wanted)
        stream = first(stream, tokens, wanted)
        stream.addmm_(mixed, attention.out.weight.t())
        hidden = up(norm(stream, self.before_mlp, self.block.mlp_norm), mlp.up.weight, mlp.up.bias, tanh=self.tanh)
        return stream.addmm_(hidden, mlp.down.weight.t()), None


class RoundedBlock(nn.Module):
    """Three of the four products in 8 bits. What attention gives would need a pass of its own to be rounded, which
    costs as much as it gains."""

    def __init__(self, block: Block):
        super().__init__()
        self.block = block
        self.tanh = block.mlp.approximate == "tanh"
        for name, layer in (("qkv", block.attention.qkv), ("up", block.mlp.up), ("down", block.mlp.down)):
            weight, scales = round_rows(layer.weight)
            self.register_buffer(f"{name}_weight", weight)
            self.register_buffer(f"{name}_scales", scales)
            layer.weight = None  # type: ignore[assignment]

    def forward(self, stream: Tensor, branch: Tensor | None, tokens: int, wanted: int | None) -> tuple[Tensor, Tensor]:
        """(R, D), and what has yet to be added to it → the same."""
        attention, mlp = self.block.attention, self.block.mlp
        stream, normed = norm_rounded(stream, branch, self.block.attention_norm)
        qkv = rounded_product(normed, self._layer("qkv"), attention.qkv.bias)
        mixed = attended(qkv, tokens, attention.heads, wanted)
        branch = torch.addmm(attention.out.bias, mixed, attention.out.weight.t())
        stream, normed = norm_rounded(first(stream, tokens, wanted), branch, self.block.mlp_norm)
        hidden = gelu_rounded(rounded_product(normed, self._layer("up"), mlp.up.bias), tanh=self.tanh)
        return stream, rounded_product(hidden, self._layer("down"), mlp.down.bias)

    def _layer(self, name: str) -> Rounded:
        return getattr(self, f"{name}_weight"), getattr(self, f"{name}_scales")


def attended(qkv: Tensor, tokens: int, heads: int, wanted: int | None) -> Tensor:
    """(R, 3·D) → (R, D), or the rows of the first `wanted` tokens of each picture."""
    query, key, value = split(qkv.unflatten(0, (-1, tokens)), heads)
    return mix(query[:, :, :wanted], key, value).transpose(1, 2).flatten(2).flatten(0, 1)


def first(stream: Tensor, tokens: int, wanted: int | None) -> Tensor:
    """The rows of the first `wanted` tokens of each picture, or all."""
    if wanted is None:
        return stream
    return stream.unflatten(0, (-1, tokens))[:, :wanted].reshape(-1, stream.shape[1]).contiguous()
