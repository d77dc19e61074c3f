"""Attention maps of every layer and head, taken from the model's own captures, one layer in memory at a time.

Induced attention has two steps, from tokens to inducing points and back. Its map is their product: a head's weights for
the inducing points times the mean over heads of what these points gather, since no head of one step goes with one of
the other. Rows still sum to 1.

Shapes: B images, L attention layers (one per block; two, rows and columns, in an axial model), H heads, T tokens (in
the last blocks of a segmenter, its queries stand in front of them), m inducing points, h x w patch grid.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.errors import ConfigError
from vitkit.inspect.inference import as_model_input, at_least_float32, batch_size, eval_mode, require_tokens
from vitkit.inspect.query_token import Token, on_patch_grid, query_weights, read_row
from vitkit.model.build import Model, TokenModel


@dataclass(frozen=True)
class AttentionLayer:
    """One attention layer of the model."""

    block: int
    axis: str = ""  # "rows" or "columns" in an axial model
    induced: bool = False

    @property
    def capture_names(self) -> tuple[str, ...]:
        steps = ("inducing", "tokens") if self.induced else (self.axis,) if self.axis else ()
        names = tuple(f"block{self.block}/{step}/attention" for step in steps)
        return names or (f"block{self.block}/attention",)

    @property
    def number(self) -> str:
        return str(self.block)

    @property
    def label(self) -> str:
        return f"{self.number} {self.axis}".strip()


def attention_layers(model: TokenModel, layers: Iterable[int] | None = None) -> list[AttentionLayer]:
    """Return the attention layers of all blocks, or of some, counted from 0 as in block0/attention."""
    depth = model.config.depth
    axes = ("rows", "columns") if model.config.axial else ("",)
    chosen = list(range(depth)) if layers is None else list(dict.fromkeys(layers))
    for layer in chosen:
        if not 0 <= layer < depth:
            raise ConfigError(f"there is no layer {layer}", layers=f"0 to {depth - 1}, {depth} in all")
    induced = model.config.induced > 0
    return [AttentionLayer(layer, axis, induced) for layer in chosen for axis in axes]


def select_heads(model: TokenModel, heads: Sequence[int] | None) -> list[int]:
    """Return all heads, or check and return some, counted from 0."""
    chosen = list(range(model.config.heads)) if heads is None else list(dict.fromkeys(heads))
    for head in chosen:
        if not 0 <= head < model.config.heads:
            raise ConfigError(f"there is no head {head}", heads=f"0 to {model.config.heads - 1}")
    return chosen


def attention_maps(
    model: Model,
    images: Tensor,
    *,
    token: Token | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> NDArray[np.float32]:
    """Return a token's attention weights over the patches: (B, L, H, h, w); default: the token that the head reads.

    Its weights for queries, class token, registers and the start of a sequence are left out: a map sums to 1 at most.
    """
    tokens = require_tokens(model, "attention")
    chosen = select_heads(tokens, heads)
    query = query_weights(tokens, token)
    maps: list[list[Tensor]] = [[] for _ in attention_layers(tokens, layers)]

    def collect(index: int, weights: Tensor) -> None:
        maps[index].append(on_patch_grid(tokens, read_row(query, weights[:, chosen])).float().cpu())

    visit_attention(tokens, images, collect, layers)
    return torch.stack([torch.cat(batches) for batches in maps], dim=1).numpy()


def visit_attention(
    model: TokenModel, images: Tensor, visit: Callable[[int, Tensor], None], layers: Sequence[int] | None = None
) -> None:
    """Call visit(index of the attention layer, weights (b, H, T, T)) for each layer during the forward pass.

    One forward pass serves all layers, for b images at a time; each layer's weights are freed before the next's.
    """
    chosen = attention_layers(model, layers)
    indices = {layer: index for index, layer in enumerate(chosen)}

    def visit_layer(layer: AttentionLayer, steps: list[Tensor]) -> None:
        weights = through_points(steps)
        visit(indices[layer], expand_axial(weights, layer.axis, model.config.grid) if layer.axis else weights)

    with eval_mode(model):
        for batch in images.split(batch_size(model)):
            model.pool_image(as_model_input(batch, model), _StreamingCapture(chosen, visit_layer))


def through_points(steps: list[Tensor]) -> Tensor:
    """Return the weights of tokens for tokens (b, H, T, T): the only step's, or from (b, H, m, T) and (b, H, T, m)."""
    *gathered, weights = map(at_least_float32, steps)
    return weights @ gathered[0].mean(dim=1, keepdim=True) if gathered else weights


def expand_axial(lines: Tensor, axis: str, grid: tuple[int, int]) -> Tensor:
    """Expand axial attention (b, lines, H, t, t) to all pairs of patches (b, H, N, N): 0 between different lines."""
    h, w = grid
    full = lines.new_zeros(lines.shape[0], lines.shape[2], h, w, h, w)
    line = torch.arange(lines.shape[1], device=lines.device)
    if axis == "rows":
        full[:, :, line, :, line, :] = lines.transpose(0, 1)  # (lines, b, H, w, w)
    else:
        full[:, :, :, line, :, line] = lines.transpose(0, 1)  # (lines, b, H, h, h)
    return full.flatten(4, 5).flatten(2, 3)


class _StreamingCapture(dict[str, Tensor | None]):
    """A dict of captures that hands each block's attention to a callback when the block ends, and then drops it."""

    def __init__(self, layers: Sequence[AttentionLayer], callback: Callable[[AttentionLayer, list[Tensor]], None]):
        self.callback = callback
        self.by_block: dict[str, list[AttentionLayer]] = {}
        for layer in layers:
            self.by_block.setdefault(f"block{layer.block}", []).append(layer)
        super().__init__(dict.fromkeys([*self.by_block, *(name for layer in layers for name in layer.capture_names)]))

    def __setitem__(self, name: str, value: Tensor | None) -> None:
        if name not in self.by_block:
            super().__setitem__(name, value)
            return
        for layer in self.by_block[name]:
            steps = [weights for step in layer.capture_names if (weights := self[step]) is not None]
            assert len(steps) == len(layer.capture_names), f"{layer.capture_names} were not captured"
            self.callback(layer, steps)
            for step in layer.capture_names:
                super().__setitem__(step, None)
