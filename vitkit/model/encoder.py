"""The Transformer encoder (paper eq. 2-3): blocks of attention and MLP, each with a residual connection.

Shapes: B batch, T tokens, N = h·w patches, D width, M MLP width, H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from vitkit.kernels.dispatch import fusable
from vitkit.kernels.linear import plain, through
from vitkit.kernels.mlp import mlp
from vitkit.kernels.norm import beside
from vitkit.model.attention import SelfAttention
from vitkit.model.capture import Seen, keep
from vitkit.model.config import Gelu, ViTConfig
from vitkit.model.initialise import linear
from vitkit.model.positions import Grid, Interpolation, Relative, build_positions


class Mlp(nn.Module):
    def __init__(self, *, width: int, hidden: int, gelu: Gelu, dropout: float):
        super().__init__()
        self.up = linear(width, hidden)
        self.down = linear(hidden, width)
        for layer in (self.up, self.down):
            nn.init.normal_(layer.bias, std=1e-6)
        self.approximate = "tanh" if gelu == "tanh" else "none"
        self.dropout = nn.Dropout(dropout)
        self.fp8 = False  # in training on a GPU, multiply 8-bit numbers on the way forward

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D)
        if fusable(x) and plain(self.up) and plain(self.down) and not (self.training and self.dropout.p):
            return mlp(
                x,
                self.up.weight,
                self.up.bias,
                self.down.weight,
                self.down.bias,
                tanh=self.approximate == "tanh",
                fp8=self.fp8,
            )
        hidden = F.gelu(through(self.up, x, fp8=self.fp8), approximate=self.approximate)  # (B, T, M)
        return through(self.down, self.dropout(hidden), fp8=self.fp8)  # (B, T, D)


class Block(nn.Module):
    """Pre-norm as in the paper; post-norm (the original Transformer) for comparison."""

    def __init__(self, config: ViTConfig, *, drop: float):
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.attention_norm = nn.LayerNorm(config.width, eps=config.eps)
        self.attention = SelfAttention(width=config.width, heads=config.heads)
        self.mlp_norm = nn.LayerNorm(config.width, eps=config.eps)
        self.mlp = Mlp(width=config.width, hidden=config.mlp, gelu=config.gelu, dropout=config.dropout)
        self.dropout = nn.Dropout(config.dropout)
        self.drop = drop

    @property
    def is_plain(self) -> bool:
        """Whether its weights are all there is to it: nobody has put other layers into it, or looks at them."""
        products = (
            [self.attention.qkv, self.attention.out, self.mlp.up, self.mlp.down]
            if (type(self.attention) is SelfAttention and type(self.mlp) is Mlp)
            else []
        )
        return (
            bool(products)
            and all(map(plain, products))
            and type(self.attention_norm) is type(self.mlp_norm) is nn.LayerNorm
        )

    def forward(
        self, x: Tensor, relative: Relative | None, seen: Seen, name: str, lines: int = 1, wanted: int | None = None
    ) -> Tensor:
        """(B, T, D) → the same, or the first `wanted` tokens alone; an axial block has `lines` rows or columns of each
        picture side by side in B."""
        if f"{name}/attention" in seen:
            seen[f"{name}/attention"] = self.attention.weights(self.attention_norm(x) if self.pre_norm else x, relative)
        if self.pre_norm:
            x, normed = beside(self.attention_norm, x)
            x = x[:, :wanted] + self._regularise(self.attention(normed, relative, wanted), lines)
            x, normed = beside(self.mlp_norm, x)
            return x + self._regularise(self.mlp(normed), lines)
        x = self.attention_norm(x[:, :wanted] + self._regularise(self.attention(x, relative, wanted), lines))
        return self.mlp_norm(x + self._regularise(self.mlp(x), lines))

    def _regularise(self, branch: Tensor, lines: int) -> Tensor:
        return drop_branch(self.dropout(branch), self.drop, self.training, lines)


class AxialBlock(nn.Module):
    """Appendix D.6: a block along each row of patches, then one along each column, twice the parameters."""

    def __init__(self, config: ViTConfig, *, drop: float):
        super().__init__()
        self.grid = config.grid
        self.row = Block(config, drop=drop)
        self.column = Block(config, drop=drop)

    def forward(self, x: Tensor, relative: None, seen: Seen, name: str) -> Tensor:
        h, w = self.grid
        rows = x.unflatten(1, (h, w)).flatten(0, 1)  # (B·h, w, D)
        rows = self.row(rows, None, seen, f"{name}/rows", lines=h).unflatten(0, (-1, h))
        columns = rows.transpose(1, 2).flatten(0, 1)  # (B·w, h, D)
        columns = self.column(columns, None, seen, f"{name}/columns", lines=w).unflatten(0, (-1, w))
        for view, lines in ((f"{name}/rows/attention", h), (f"{name}/columns/attention", w)):
            if view in seen:  # (B·lines, H, T, T) → (B, lines, H, T, T)
                seen[view] = seen[view].unflatten(0, (-1, lines))  # type: ignore[union-attr]
        return columns.transpose(1, 2).flatten(1, 2)  # (B, N, D)


class Encoder(nn.Module):
    """Tokens in, tokens out; positions are injected here, before the first layer or before each."""

    positions: Any  # a ModuleList forgets the type of what it holds
    blocks: Any

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.relative = config.positions == "relative"
        self.every_layer = config.inject != "stem"
        self.positions = build_positions(config)
        self.dropout = nn.Dropout(config.dropout)
        # Stochastic depth rises linearly from 0 at the first layer to its full rate at the last.
        rates = torch.linspace(0, config.stochastic_depth, config.depth, device="cpu").tolist()
        kind = AxialBlock if config.axial else Block
        self.blocks = nn.ModuleList(kind(config, drop=rate) for rate in rates)
        self.recompute = False  # in training keep only what enters a block, and go through it again on the way back
        # Post-norm blocks end normalised; with pool="gap-norm" the pool normalises instead.
        normed_elsewhere = config.norm == "post" or config.pool == "gap-norm"
        self.norm = nn.Identity() if normed_elsewhere else nn.LayerNorm(config.width, eps=config.eps)

    def forward(self, x: Tensor, seen: Seen, wanted: int | None = None) -> Tensor:
        """(B, T, D) → the same; with `wanted`, only the first tokens leave the last block, the others being looked at
        there but not worked on. Nothing else comes out differently."""
        for layer, block in enumerate(self.blocks):
            relative = self._positions(layer) if self.relative else None
            x = self.place(x, layer)
            if layer == 0:
                x = self.dropout(x)
                keep(seen, "tokens", x)
            through = checkpointed(block) if self.recompute and torch.is_grad_enabled() and not seen else block
            last = {"wanted": wanted} if wanted is not None and layer == len(self.blocks) - 1 else {}
            x = through(x, relative, seen, f"block{layer}", **last)
            keep(seen, f"block{layer}", x)
        x = self.norm(x)
        keep(seen, "encoded", x)
        return x

    def resize(self, grid: Grid, interpolation: Interpolation) -> None:
        for positions in self.positions:
            positions.resize(grid, interpolation)
        for block in self.blocks:
            if isinstance(block, AxialBlock):
                block.grid = grid

    def _positions(self, layer: int) -> Any:
        return self.positions[layer if len(self.positions) > 1 else 0]

    def place(self, x: Tensor, layer: int = 0) -> Tensor:
        """Tokens with the positions that this layer adds to them, if it does."""
        absolute = len(self.positions) > 0 and not self.relative
        if absolute and (layer == 0 or self.every_layer):
            return x + self._positions(layer)()
        return x


def checkpointed(block: nn.Module) -> Callable[..., Tensor]:
    """The block, gone through again on the way back with the weights that it has now: those of bf16 passes are swapped
    in for the way forward alone, and no parameters of its own."""
    held = dict(chain(block.named_parameters(), block.named_buffers()))
    if torch.compiler.is_compiling() or all(isinstance(tensor, nn.Parameter) for tensor in held.values()):
        return partial(checkpoint, block, use_reentrant=False)

    def again(*given: Any, **options: Any) -> Tensor:
        return functional_call(block, held, given, options)

    return partial(checkpoint, again, use_reentrant=False)


def drop_branch(branch: Tensor, rate: float, training: bool, lines: int = 1) -> Tensor:
    """Stochastic depth: leave the whole residual branch out for some pictures, scale it up for the others.

    (B·lines, T, D), where a picture's lines stand together and share its fate.
    """
    if not training or rate == 0:
        return branch
    kept = torch.rand(branch.shape[0] // lines, 1, 1, device=branch.device) >= rate
    return branch * kept.repeat_interleave(lines, dim=0) / (1 - rate)
