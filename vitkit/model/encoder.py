"""The Transformer encoder (paper eq. 2-3): blocks of attention and MLP, each with a residual connection.

Shapes: B batch, T tokens, N = h·w patches, D width, H heads.
"""

from typing import Any

import torch
from torch import Tensor, nn

from vitkit.model.attention import AttentionPositions, MaskedAttention, SelfAttention
from vitkit.model.capture import Seen, keep
from vitkit.model.config import ViTConfig
from vitkit.model.drop_path import drop_path
from vitkit.model.induced import InducedBlock
from vitkit.model.layer_scale import build_layer_scale
from vitkit.model.mlp import build_mlp
from vitkit.model.options import INSIDE_ATTENTION, PositionTransfer
from vitkit.model.positional_attention import PositionalAttention
from vitkit.model.positions import build_positions, fresh_positions, skip_tokens
from vitkit.model.resize_positions import Interpolation
from vitkit.model.rotary import RotaryPositions


class Block(nn.Module):
    """One layer: pre-norm as in the paper, or post-norm (the original Transformer) for comparison."""

    attention: Any  # SelfAttention or PositionalAttention
    mlp: Any  # Mlp or SwiGlu

    def __init__(self, config: ViTConfig, *, drop: float):
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.attention_norm = nn.LayerNorm(config.width, eps=config.eps)
        self.attention = build_attention(config)
        self.attention_scale = build_layer_scale(config.width, config.layer_scale)
        self.mlp_norm = nn.LayerNorm(config.width, eps=config.eps)
        self.mlp = build_mlp(config, dropout=config.dropout)
        self.mlp_scale = build_layer_scale(config.width, config.layer_scale)
        self.dropout = nn.Dropout(config.dropout)
        self.drop = drop

    def forward(self, x: Tensor, positions: AttentionPositions | None, seen: Seen, name: str, lines: int = 1) -> Tensor:
        """(B, T, D) → the same; in an axial block B holds `lines` rows or columns of each image side by side."""
        self.capture_attention(x, positions, seen, name)
        if self.pre_norm:
            branch = self.attention_scale(self.attention(self.attention_norm(x), positions))
            x = x + self.regularise(branch, lines)  # eq. 2
            branch = self.mlp_scale(self.mlp(self.mlp_norm(x)))
            return x + self.regularise(branch, lines)  # eq. 3
        x = self.attention_norm(x + self.regularise(self.attention_scale(self.attention(x, positions)), lines))
        return self.mlp_norm(x + self.regularise(self.mlp_scale(self.mlp(x)), lines))

    def capture_attention(self, x: Tensor, positions: AttentionPositions | None, seen: Seen, name: str) -> None:
        if f"{name}/attention" in seen:
            normed = self.attention_norm(x) if self.pre_norm else x
            seen[f"{name}/attention"] = self.attention.weights(normed, positions)

    def regularise(self, branch: Tensor, lines: int) -> Tensor:
        return drop_path(self.dropout(branch), self.drop, self.training, lines)


def build_attention(config: ViTConfig) -> SelfAttention | PositionalAttention:
    if not config.content:
        return PositionalAttention(width=config.width, heads=config.heads)
    biased = (config.query_bias, config.key_bias, config.value_bias)
    return SelfAttention(width=config.width, heads=config.heads, biased=biased)


class AxialBlock(nn.Module):
    """Appendix D.6: a block along each row of patches, then one along each column, twice the parameters."""

    def __init__(self, config: ViTConfig, *, drop: float):
        super().__init__()
        self.grid = config.grid
        self.row = Block(config, drop=drop)
        self.column = Block(config, drop=drop)

    def forward(self, x: Tensor, positions: None, seen: Seen, name: str) -> Tensor:
        h, w = self.grid
        rows = x.unflatten(1, (h, w)).flatten(0, 1)  # (B·h, w, D)
        rows = self.row(rows, None, seen, f"{name}/rows", lines=h).unflatten(0, (-1, h))
        columns = rows.transpose(1, 2).flatten(0, 1)  # (B·w, h, D)
        columns = self.column(columns, None, seen, f"{name}/columns", lines=w).unflatten(0, (-1, w))
        for view, lines in ((f"{name}/rows/attention", h), (f"{name}/columns/attention", w)):
            if view in seen:  # (B·lines, H, T, T) → (B, lines, H, T, T)
                seen[view] = seen[view].unflatten(0, (-1, lines))  # type: ignore[union-attr]
        return columns.transpose(1, 2).flatten(1, 2)  # (B, N, D)


def attention_views(config: ViTConfig) -> tuple[str, ...]:
    """Return the names of a layer's attention weights, in the order of computation."""
    if config.induced:
        return "inducing/attention", "tokens/attention"
    return ("rows/attention", "columns/attention") if config.axial else ("attention",)


class Encoder(nn.Module):
    """Tokens in, tokens out; positions are added here, before the first layer or before each."""

    positions: Any  # a ModuleList forgets the type of what it holds
    blocks: Any

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.inside_attention = config.positions in INSIDE_ATTENTION
        self.every_layer = config.inject != "stem"
        self.positions = build_positions(config)
        self.positioned = config.special_positions  # of the special tokens, the first so many have positions
        self.without_position = config.special_tokens - config.special_positions
        self.rotary = RotaryPositions(config) if config.rotary != "none" else None
        self.dropout = nn.Dropout(config.dropout)
        self.ln_pre = nn.LayerNorm(config.width, eps=config.eps) if config.ln_pre else None
        # Stochastic depth rises linearly from 0 at the first layer to its full rate at the last.
        rates = torch.linspace(0, config.stochastic_depth, config.depth, device="cpu").tolist()
        kind = InducedBlock if config.induced else AxialBlock if config.axial else Block
        self.blocks = nn.ModuleList(kind(config, drop=rate) for rate in rates)
        # Post-norm blocks end normalised; with pool="gap-norm" the pool normalises instead.
        normed_elsewhere = config.norm == "post" or config.pool == "gap-norm"
        self.norm = nn.Identity() if normed_elsewhere else nn.LayerNorm(config.width, eps=config.eps)

    def forward(self, x: Tensor, seen: Seen) -> Tensor:  # (B, T, D)
        x = self.start(x, seen)
        for layer in range(len(self.blocks)):
            x = self.block(x, layer, seen)
        return self.finish(x, seen)

    def start(self, x: Tensor, seen: Seen) -> Tensor:
        """Return the input of the first block for tokens (B, T, D) without positions."""
        x = self.dropout(self.add_positions(x))
        x = x if self.ln_pre is None else self.ln_pre(x)
        keep(seen, "tokens", x)
        return x

    def block(self, x: Tensor, layer: int, seen: Seen, queries: int = 0, mask: Tensor | None = None) -> Tensor:
        """Compute one block. The first `queries` tokens have no positions; `mask` is added to attention scores."""
        if self.every_layer and layer > 0:
            others = self.add_positions(x[:, queries:], layer)
            x = torch.cat([x[:, :queries], others], dim=1) if queries else others
        inside = self._positions(layer) if self.inside_attention else self.rotary
        positions = inside if mask is None else MaskedAttention(mask, inside)
        x = self.blocks[layer](x, positions, seen, f"block{layer}")
        keep(seen, f"block{layer}", x)
        return x

    def finish(self, x: Tensor, seen: Seen) -> Tensor:
        x = self.norm(x)
        keep(seen, "encoded", x)
        return x

    def resize(self, config: ViTConfig, interpolation: Interpolation, positions: PositionTransfer) -> None:
        """Change the grid to that of `config`, with positions that are interpolated, stretched or re-initialised."""
        if positions == "fresh":
            self.positions = fresh_positions(config, self.positions)
        for table in self.positions if positions != "fresh" else ():
            (table.stretch if positions == "stretch" else table.resize)(config.grid, interpolation)
        if self.rotary is not None:
            self.rotary.resize(config.grid)
        for block in self.blocks:
            if isinstance(block, AxialBlock):
                block.grid = config.grid

    def add_positions(self, x: Tensor, layer: int = 0) -> Tensor:
        """Add the absolute positions that this layer has, if it has any."""
        absolute = len(self.positions) > 0 and not self.inside_attention
        if absolute and (layer == 0 or self.every_layer):
            return x + skip_tokens(self._positions(layer)(), self.positioned, self.without_position)
        return x

    def _positions(self, layer: int) -> Any:
        return self.positions[layer if len(self.positions) > 1 else 0]
