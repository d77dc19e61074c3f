"""What each head of each layer attends to, through the model's own captures, one layer in memory at a time.

Shapes: B pictures, V views (one per layer; two, rows and columns, in an axial model), H heads, T tokens, h x w grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.errors import ConfigError
from vitkit.inspect.applies import looking, placed, together, transformer, widened
from vitkit.inspect.tokens import Token, over_patches, query
from vitkit.model.build import Model
from vitkit.model.vit import VisionTransformer


@dataclass(frozen=True)
class View:
    """One attention of the model, by the name under which it is captured."""

    layer: int
    along: str = ""  # "rows" or "columns" in an axial model

    @property
    def name(self) -> str:
        return f"block{self.layer}/{self.along}/attention" if self.along else f"block{self.layer}/attention"

    @property
    def label(self) -> str:
        return f"{self.layer} {self.along}".strip()


def views(model: VisionTransformer, layers: Iterable[int] | None = None) -> list[View]:
    """Those of all layers, or of some, counted from 0 as in block0/attention."""
    depth = model.config.depth
    chosen = list(range(depth)) if layers is None else list(dict.fromkeys(layers))
    for layer in chosen:
        if not 0 <= layer < depth:
            raise ConfigError(f"there is no layer {layer}", layers=f"0 to {depth - 1}, {depth} in all")
    return [View(layer, along) for layer in chosen for along in (("rows", "columns") if model.config.axial else ("",))]


def pick_heads(model: VisionTransformer, heads: Sequence[int] | None) -> list[int]:
    """All heads, or some, counted from 0."""
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
    """(B, V, H, h, w): the weights that a token gives to the patches; without one, the token that the head reads.

    What it gives to the class token is left out, so a map sums to 1 at most.
    """
    vit = transformer(model, "attention")
    chosen = pick_heads(vit, heads)
    asked = query(vit, token)
    maps: list[list[Tensor]] = [[] for _ in views(vit, layers)]

    def look(index: int, weights: Tensor) -> None:
        rows = torch.einsum("t,bhts->bhs", asked.to(weights), weights[:, chosen])
        maps[index].append(over_patches(vit, rows).float().cpu())

    each_view(vit, images, look, layers)
    return torch.stack([torch.cat(parts) for parts in maps], dim=1).numpy()


def each_view(
    model: VisionTransformer, images: Tensor, look: Callable[[int, Tensor], None], layers: Sequence[int] | None = None
) -> None:
    """Calls look(place among the views, weights (b, H, T, T)) as the forward pass goes by, for a few pictures a time.

    One pass through the model for all layers; the weights of a layer are gone before the next are formed.
    """
    wanted = views(model, layers)
    place = {view: index for index, view in enumerate(wanted)}

    def whole(view: View, weights: Tensor) -> None:
        weights = widened(weights)
        look(place[view], weights if not view.along else spread(weights, view.along, model.config.grid))

    with looking(model):
        for part in images.split(together(model)):
            model.pool_image(placed(part, model), _PassedOn(wanted, whole))


def spread(lines: Tensor, along: str, grid: tuple[int, int]) -> Tensor:
    """Axial attention (b, lines, H, t, t) as attention between all patches (b, H, N, N): other lines get nothing."""
    h, w = grid
    whole = lines.new_zeros(lines.shape[0], lines.shape[2], h, w, h, w)
    line = torch.arange(lines.shape[1], device=lines.device)
    if along == "rows":
        whole[:, :, line, :, line, :] = lines.transpose(0, 1)  # (lines, b, H, w, w)
    else:
        whole[:, :, :, line, :, line] = lines.transpose(0, 1)  # (lines, b, H, h, h)
    return whole.flatten(4, 5).flatten(2, 3)


class _PassedOn(dict[str, Tensor | None]):
    """Names to capture, as for any forward pass; a block's attention is passed on as the block ends, then forgotten."""

    def __init__(self, wanted: Sequence[View], look: Callable[[View, Tensor], None]):
        self.look = look
        self.ends: dict[str, list[View]] = {}
        for view in wanted:
            self.ends.setdefault(f"block{view.layer}", []).append(view)
        super().__init__(dict.fromkeys([*self.ends, *(view.name for view in wanted)]))

    def __setitem__(self, name: str, value: Tensor | None) -> None:
        if name not in self.ends:
            super().__setitem__(name, value)
            return
        for view in self.ends[name]:
            weights = self[view.name]
            assert weights is not None, f"{view.name} was not captured"
            self.look(view, weights)
            super().__setitem__(view.name, None)
