"""`fuse(model)`: blocks that train and answer with fewer kernels, put into a model from outside.

A fused module is a copy of the plain one under another class: the same parameters under the same names. It uses the
kernels where they apply (`triton_applies`: bf16 on a GPU) and plain PyTorch elsewhere. What the allow-list does not
know stays plain.

Where the head reads the class token alone, the last block computes its output for that token only, on any device: a
15th of B/16's time.

Shapes: B batch, T tokens, D width, H heads, d = D / H, Q query tokens.
"""

import copy
from typing import Any, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.cost import class_token_suffices
from vitkit.kernels.attention import can_fuse_attention, fused_attention, sdpa
from vitkit.kernels.dispatch import triton_applies
from vitkit.kernels.linear import apply_linear, is_plain_linear, scaled_weights
from vitkit.kernels.mlp import fused_mlp
from vitkit.kernels.norm import residual_layer_norm
from vitkit.model.allow_list import Children, allow
from vitkit.model.attention import (
    AttentionPositions,
    PartlyBiasedLinear,
    SelfAttention,
    apply_positions,
    complete_bias,
    split_heads,
)
from vitkit.model.build import Model, transformer_of
from vitkit.model.capture import Seen
from vitkit.model.encoder import Block
from vitkit.model.layer_scale import LayerScale
from vitkit.model.mlp import Mlp, SwiGlu, apply_gelu, apply_swiglu
from vitkit.model.rotary import RotaryPositions
from vitkit.torch_private import has_hooks

Kind = TypeVar("Kind", bound=nn.Module)

TENSOR = (Tensor, nn.Parameter)
PLAIN_BLOCK: dict[type[nn.Module], Children] = {  # a block of the model with nothing added, replaced or left out
    Block: {
        "attention_norm": (nn.LayerNorm,),
        "attention": (SelfAttention,),
        "attention_scale": (nn.Identity,),
        "mlp_norm": (nn.LayerNorm,),
        "mlp": (Mlp,),
        "mlp_scale": (nn.Identity,),
        "dropout": (nn.Dropout,),
    },
    SelfAttention: {"qkv": (nn.Linear,), "out": (nn.Linear,)},
    Mlp: {"up": (nn.Linear,), "down": (nn.Linear,), "dropout": (nn.Dropout,)},
    nn.Linear: {"weight": TENSOR, "bias": TENSOR},
    nn.LayerNorm: {"weight": TENSOR, "bias": TENSOR},
    nn.Dropout: {},
    nn.Identity: {},
}
KNOWN_BLOCK: dict[type[nn.Module], Children] = {  # and what later families added inside of it
    **PLAIN_BLOCK,
    Block: {
        **PLAIN_BLOCK[Block],
        "attention_scale": (nn.Identity, LayerScale),
        "mlp": (Mlp, SwiGlu),
        "mlp_scale": (nn.Identity, LayerScale),
    },
    SelfAttention: {**PLAIN_BLOCK[SelfAttention], "qkv": (nn.Linear, PartlyBiasedLinear)},
    PartlyBiasedLinear: PLAIN_BLOCK[nn.Linear],
    SwiGlu: {"gate_up": (nn.Linear,), "down": (nn.Linear,), "dropout": (nn.Dropout,)},
    LayerScale: {"gamma": TENSOR},
}
FUSIBLE = allow(
    "the fused training path",
    vit="depth width mlp heads patch stem image channels classes positions inject pool class_token representation "
    "norm axial gelu eps dropout stochastic_depth "
    "patch_bias class_position distillation registers projection normalise ln_pre "
    "query_bias key_bias value_bias swiglu layer_scale rotary rotary_base rotary_layout seeds",
    plain="content induced",
    only={"attention": (None,), "gelu": ("tanh", "exact", "quick")},
    conv="layers width preactivation standardise_eps standardise_on norm_eps attention",
    modules=KNOWN_BLOCK,
)


class FusedAttention(SelfAttention):
    fp8 = False  # whether the projection's forward product is in fp8

    def forward(
        self,
        x: Tensor,
        positions: AttentionPositions | None = None,
        queries: int | None = None,
        gamma: Tensor | None = None,
    ) -> Tensor:
        """(B, T, D) → the same, or the output of the first `queries` special tokens only: (B, Q, D), times `gamma`."""
        rotary = positions if isinstance(positions, RotaryPositions) else None
        plain = positions is rotary and is_plain_linear(self.qkv, (nn.Linear, PartlyBiasedLinear))
        if plain and queries is None and can_fuse_attention(x, self.heads):
            weight, bias = self.qkv.weight, complete_bias(self.qkv)
            mixed = fused_attention(x, weight, bias, self.heads, rotary=rotary, fp8=self.fp8)
            return apply_linear(self.out, mixed, gamma=gamma)
        scores_bias = None
        if plain and queries and triton_applies(x) and not self.fp8:
            query, key, value = self._project(x, queries)
            key = key if rotary is None else rotary.turn(key)  # the queries are of special tokens: they are not turned
        else:
            query, key, value = split_heads(apply_linear(self.qkv, x, fp8=self.fp8), self.heads)
            query, key, scores_bias = apply_positions(query, key, positions)
        mixed = sdpa(query[:, :, :queries], key, value, scores_bias)  # (B, H, Q, d)
        return apply_linear(self.out, mixed.transpose(1, 2).flatten(2), gamma=gamma)  # (B, Q, D)

    def _project(self, x: Tensor, queries: int) -> tuple[Tensor, Tensor, Tensor]:
        """Project the first tokens to queries, and all tokens to keys and values: (B, H, ·, d)."""
        both_parts = (self.qkv.weight, complete_bias(self.qkv))
        weights, biases = (tensor.split([x.shape[-1], 2 * x.shape[-1]]) for tensor in both_parts)
        query = F.linear(x[:, :queries], weights[0], biases[0]).unflatten(-1, (self.heads, -1))
        both = F.linear(x, weights[1], biases[1]).unflatten(-1, (2, self.heads, -1))
        key, value = both.permute(2, 0, 3, 1, 4).unbind(0)
        return query.transpose(1, 2), key, value


class FusedMlp(Mlp):
    fp8 = False  # whether the forward products are in fp8

    def forward(self, x: Tensor, gamma: Tensor | None = None) -> Tensor:  # (B, T, D)
        if _can_fuse_mlp(self, self.up, x):
            weights = (self.up.weight, self.up.bias, *scaled_weights(self.down, gamma))
            return fused_mlp(x, *weights, activation=self.gelu, fp8=self.fp8)
        hidden = apply_gelu(apply_linear(self.up, x, fp8=self.fp8), self.gelu)
        return apply_linear(self.down, self.dropout(hidden), gamma=gamma, fp8=self.fp8)


class FusedSwiGlu(SwiGlu):
    fp8 = False  # whether the forward products are in fp8

    def forward(self, x: Tensor, gamma: Tensor | None = None) -> Tensor:  # (B, T, D)
        if _can_fuse_mlp(self, self.gate_up, x):
            weights = (self.gate_up.weight, self.gate_up.bias, *scaled_weights(self.down, gamma))
            return fused_mlp(x, *weights, activation="swiglu", fp8=self.fp8)
        hidden = apply_swiglu(apply_linear(self.gate_up, x, fp8=self.fp8))
        return apply_linear(self.down, self.dropout(hidden), gamma=gamma, fp8=self.fp8)


def _can_fuse_mlp(mlp: FusedMlp | FusedSwiGlu, first: nn.Linear, x: Tensor) -> bool:
    plain = is_plain_linear(first) and is_plain_linear(mlp.down)
    return triton_applies(x) and plain and not (mlp.training and mlp.dropout.p)


class FusedBlock(Block):
    attention: FusedAttention
    class_token_only = False  # whether only the class token leaves this block

    def forward(self, x: Tensor, positions: AttentionPositions | None, seen: Seen, name: str, lines: int = 1) -> Tensor:
        self.capture_attention(x, positions, seen, name)
        all_tokens = not self.class_token_only or name in seen or "encoded" in seen
        queries = None if all_tokens else 1
        if self.pre_norm:
            x, normed = residual_layer_norm(self.attention_norm, x)
            branch = scaled(self.attention, self.attention_scale, normed, positions, queries)
            x = x[:, :queries] + self.regularise(branch, lines)  # eq. 2
            x, normed = residual_layer_norm(self.mlp_norm, x)
            return x + self.regularise(scaled(self.mlp, self.mlp_scale, normed), lines)  # eq. 3
        branch = scaled(self.attention, self.attention_scale, x, positions, queries)
        x = self.attention_norm(x[:, :queries] + self.regularise(branch, lines))
        return self.mlp_norm(x + self.regularise(scaled(self.mlp, self.mlp_scale, x), lines))


def scaled(layer: nn.Module, scale: nn.Module, *inputs: Any) -> Tensor:
    """Apply a layer and its LayerScale, which goes into the layer's last product where nobody looks between them."""
    branch: Tensor
    fused = isinstance(layer, FusedAttention | FusedMlp | FusedSwiGlu) and not has_hooks(layer)
    if fused and type(scale) is LayerScale and not has_hooks(scale):
        branch = layer(*inputs, gamma=scale.gamma)
    else:
        branch = scale(layer(*inputs))
    return branch


def fuse(model: Model, *, class_token_only: bool = False, fp8: bool = False) -> str | None:
    """Replace the blocks that the allow-list knows, in place, and return why others stay plain.

    `class_token_only` says that nobody asks the model for the other tokens of the last block.
    """
    vit = transformer_of(model)
    if vit is None:
        return None  # other models have no such blocks
    reason = FUSIBLE.reason_to_decline(vit.config)
    if reason is not None:
        return reason
    for parent in list(vit.modules()):
        for name, child in parent.named_children():
            in_pool = isinstance(child, Mlp) and not isinstance(parent, Block)
            if isinstance(child, FusedBlock | FusedMlp) or not (isinstance(child, Block) or in_pool):
                continue
            hooked = first_hook(child)
            declined = FUSIBLE.reason_to_decline(vit.config, child) or (
                f"{FUSIBLE.consumer} does not call the hooks on {hooked}" if hooked is not None else None
            )
            reason = reason or declined
            if declined is None and isinstance(child, Block):
                setattr(parent, name, fused_block(child, fp8=fp8))
            elif declined is None:
                setattr(parent, name, fused_module(FusedMlp, child, fp8=fp8))
    last = vit.encoder.blocks[-1]
    if isinstance(last, FusedBlock):  # a segmenter reads all tokens
        last.class_token_only = class_token_only and vit is model and class_token_suffices(vit.config)
    return reason


def fused_block(block: Block, *, fp8: bool = False) -> FusedBlock:
    """Return a fused block with the children of a plain one."""
    fused = fused_module(FusedBlock, block)
    fused.attention = fused_module(FusedAttention, block.attention, fp8=fp8)
    fused.mlp = fused_module(FusedSwiGlu if isinstance(block.mlp, SwiGlu) else FusedMlp, block.mlp, fp8=fp8)
    return fused


def fused_module(kind: type[Kind], module: nn.Module, **options: bool) -> Kind:
    """Return a shallow copy of the module under its fused class."""
    fused = copy.copy(module)
    fused.__class__ = kind
    for name, value in options.items():
        setattr(fused, name, value)
    return fused  # type: ignore[return-value]


def first_hook(module: nn.Module) -> str | None:
    """Return the path of the first child with hooks, which fused code does not call."""
    return next((path or type(child).__name__ for path, child in module.named_modules() if has_hooks(child)), None)
