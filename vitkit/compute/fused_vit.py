"""The forward pass of a plain ViT with few passes over memory: written for GPUs, the same anywhere.

Nothing but LayerNorm stands between the matrix products. A product adds to the residual stream in place; its bias is
left out, and the sum of all biases so far is one vector that the next LayerNorm adds as it reads. GELU is applied in
the epilogue of its product. fp8 products cannot add, so LayerNorm adds the branch and quantises its output, and so does
GELU. Where the head reads the class token alone, the last block computes no other token.

Shapes: B images, T tokens, R = B·T rows, Q query tokens, D width, M hidden width, K classes.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.compute.fold import fold_blocks
from vitkit.cost import class_token_suffices
from vitkit.kernels.attention import sdpa, split_turned_heads
from vitkit.kernels.forward import (
    Activation,
    Fp8Rows,
    activate_fp8,
    add_layer_norm_fp8,
    linear_activation,
    linear_fp8,
    quantize_rows,
    shifted_layer_norm,
)
from vitkit.kernels.fuse import KNOWN_BLOCK, FusedAttention, FusedBlock, FusedMlp, FusedSwiGlu, first_hook
from vitkit.model.allow_list import allow
from vitkit.model.attention import SelfAttention
from vitkit.model.build import Model
from vitkit.model.encoder import Block
from vitkit.model.mlp import Mlp, SwiGlu
from vitkit.model.rotary import RotaryPositions
from vitkit.model.vit import VisionTransformer

# Patch embedding, pooling and head are called as they are; encoder and blocks are written anew here.
SUPPORTED = allow(
    "the fused forward pass",
    vit="depth width mlp heads patch stem image channels classes positions inject pool class_token representation "
    "norm axial gelu eps dropout stochastic_depth "
    "patch_bias class_position distillation registers projection normalise ln_pre "
    "query_bias key_bias value_bias swiglu layer_scale rotary rotary_base rotary_layout seeds",
    plain="content induced",
    only={
        "attention": (None,),
        "norm": ("pre",),
        "gelu": ("tanh", "exact", "quick"),
        "axial": (False,),
        "positions": ("none", "1d", "2d", "sincos", "sincos1d"),
        "inject": ("stem",),
    },
    conv="layers width preactivation standardise_eps standardise_on norm_eps attention",
    modules={
        **KNOWN_BLOCK,
        FusedBlock: {**KNOWN_BLOCK[Block], "attention": (FusedAttention,), "mlp": (FusedMlp, FusedSwiGlu)},
        FusedAttention: KNOWN_BLOCK[SelfAttention],
        FusedMlp: KNOWN_BLOCK[Mlp],
        FusedSwiGlu: KNOWN_BLOCK[SwiGlu],
    },
)
ENCODER_CHILDREN = {"positions", "rotary", "dropout", "ln_pre", "blocks", "norm"}


def reason_to_decline(model: Model) -> str | None:
    """Return why `FusedViT` is not for this model, as a sentence, or None."""
    if not isinstance(model, VisionTransformer):
        return f"{SUPPORTED.consumer} is for ViTs, and this model is {model.kind}"
    unknown = {name for name, _ in model.encoder.named_children()} - ENCODER_CHILDREN
    if unknown or dict(model.encoder.named_parameters(recurse=False)):
        return f"{SUPPORTED.consumer} does not know {', '.join(sorted(unknown)) or 'the parameters'} of Encoder"
    if reason := SUPPORTED.reason_to_decline(model.config, *model.encoder.blocks):
        return reason
    hooked = first_hook(model.encoder)
    return None if hooked is None else f"{SUPPORTED.consumer} does not call the hooks on encoder.{hooked}"


def fp8_widths_fit(model: VisionTransformer) -> bool:
    """Return whether GPUs can multiply the model's matrices in fp8, which they do in multiples of 16."""
    return model.config.width % 16 == 0 and model.config.mlp % 16 == 0


class FusedViT(nn.Module):
    """A copy of a model for inference: images (B, C, height, width) → logits (B, K), float32."""

    bias: Tensor

    def __init__(self, model: VisionTransformer, dtype: torch.dtype = torch.bfloat16, *, fp8: bool = False):
        super().__init__()
        model = copy.deepcopy(model)
        fold_blocks(model)
        for name, child in model.named_children():
            child.to(torch.float32 if name in ("projection", "head") else dtype)
        for token in model.parameters(recurse=False):
            token.data = token.data.to(dtype)
        self.model, self.dtype = model.eval().requires_grad_(False), dtype
        self.queries = 1 if class_token_suffices(model.config) else None
        self.blocks = nn.ModuleList()
        bias = torch.zeros(model.config.width, device=model.encoder.blocks[0].mlp.down.bias.device)
        for block in model.encoder.blocks:
            if fp8:
                self.blocks.append(FusedFp8Block(block))
            else:
                self.blocks.append(FusedBf16Block(block, bias))
                bias = bias + block.attention.out.bias.float() + block.mlp.down.bias.float()
        self.register_buffer("bias", bias)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model.head(self.represent(images))
        return logits

    def represent(self, images: Tensor) -> Tensor:
        """Return the input of the logits layer: (B, D), float32."""
        model = self.model
        model.check_images(images)
        x = model.tokens(model.embed(images.to(self.dtype)))  # (B, T, D)
        x = model.encoder.add_positions(x)
        x = x if model.encoder.ln_pre is None else model.encoder.ln_pre(x)
        b, t, _ = x.shape
        state: Any = x.flatten(0, 1), None
        for layer, block in enumerate(self.blocks):
            state = block(*state, t, self.queries if layer == len(self.blocks) - 1 else None, model.encoder.rotary)
        stream, branch = state
        stream = stream if branch is None else stream + branch
        norm = model.encoder.norm
        encoded = shifted_layer_norm(stream, self.bias, norm) if isinstance(norm, nn.LayerNorm) else stream + self.bias
        pooled = model.pool(encoded.to(self.dtype).unflatten(0, (b, -1))).float()
        return model.head.represent(pooled if model.projection is None else model.projection(pooled))


class FusedBf16Block(nn.Module):
    attention_bias: Tensor
    mlp_bias: Tensor

    def __init__(self, block: Block, bias: Tensor):
        super().__init__()
        self.block = block
        self.first, self.activation = first_layer(block.mlp)
        self.register_buffer("attention_bias", bias)
        self.register_buffer("mlp_bias", bias + block.attention.out.bias.float())

    def forward(
        self, stream: Tensor, branch: None, tokens: int, queries: int | None, rotary: RotaryPositions | None
    ) -> tuple[Tensor, None]:
        """(R, D), overwritten unless `queries` limits the tokens → the same, or the rows of the first tokens."""
        attention, mlp = self.block.attention, self.block.mlp
        normed = shifted_layer_norm(stream, self.attention_bias, self.block.attention_norm)
        qkv = torch.addmm(attention.qkv.bias, normed, attention.qkv.weight.t())
        mixed = attention_rows(qkv, tokens, attention.heads, queries, rotary)
        stream = first_tokens(stream, tokens, queries)
        stream.addmm_(mixed, attention.out.weight.t())
        normed = shifted_layer_norm(stream, self.mlp_bias, self.block.mlp_norm)
        hidden = linear_activation(normed, self.first.weight, self.first.bias, self.activation)
        return stream.addmm_(hidden, mlp.down.weight.t()), None


class FusedFp8Block(nn.Module):
    """A block with three of its four products in fp8; quantising attention's output would cost what it gains."""

    def __init__(self, block: Block):
        super().__init__()
        self.block = block
        self.first, self.activation = first_layer(block.mlp)
        for name, layer in (("qkv", block.attention.qkv), ("first", self.first), ("down", block.mlp.down)):
            weight, scales = quantize_rows(layer.weight)
            self.register_buffer(f"{name}_weight", weight)
            self.register_buffer(f"{name}_scales", scales)
            layer.weight = None

    def forward(
        self, stream: Tensor, branch: Tensor | None, tokens: int, queries: int | None, rotary: RotaryPositions | None
    ) -> tuple[Tensor, Tensor]:
        """(R, D), and the branch that is still to be added to it → the same."""
        attention, mlp = self.block.attention, self.block.mlp
        stream, normed = add_layer_norm_fp8(stream, branch, self.block.attention_norm)
        qkv = linear_fp8(normed, self._weight("qkv"), attention.qkv.bias)
        mixed = attention_rows(qkv, tokens, attention.heads, queries, rotary)
        branch = torch.addmm(attention.out.bias, mixed, attention.out.weight.t())
        stream, normed = add_layer_norm_fp8(first_tokens(stream, tokens, queries), branch, self.block.mlp_norm)
        hidden = activate_fp8(linear_fp8(normed, self._weight("first"), self.first.bias), self.activation)
        return stream, linear_fp8(hidden, self._weight("down"), mlp.down.bias)

    def _weight(self, name: str) -> Fp8Rows:
        return getattr(self, f"{name}_weight"), getattr(self, f"{name}_scales")


def first_layer(mlp: Mlp | SwiGlu) -> tuple[nn.Linear, Activation]:
    """Return the first linear layer of an MLP, and what follows it."""
    return (mlp.gate_up, "swiglu") if isinstance(mlp, SwiGlu) else (mlp.up, mlp.gelu)


def attention_rows(qkv: Tensor, tokens: int, heads: int, queries: int | None, rotary: RotaryPositions | None) -> Tensor:
    """(R, 3·D) → (R, D), or the rows of the first `queries` tokens of each image. `qkv` may be overwritten."""
    query, key, value = split_turned_heads(qkv.unflatten(0, (-1, tokens)), heads, rotary)
    return sdpa(query[:, :, :queries], key, value).transpose(1, 2).flatten(2).flatten(0, 1)


def first_tokens(stream: Tensor, tokens: int, queries: int | None) -> Tensor:
    """Return the rows of the first `queries` tokens of each image, or all."""
    if queries is None:
        return stream
    return stream.unflatten(0, (-1, tokens))[:, :queries].reshape(-1, stream.shape[1]).contiguous()
