"""What a format has to say of itself: how its tensors pair with ours, and what it cannot hold."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vitkit.errors import SizeError, WeightsError
from vitkit.model.base import Metadata
from vitkit.model.config import ModelConfig, ViTConfig
from vitkit.model.variants import heads_by_width

log = logging.getLogger("vitkit")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A file or folder as found: tensors, the JSON files beside them, and what the caller knows that they do not."""

    origin: str
    tensors: Mapping[str, Tensor]
    record: Mapping[str, Any] | None = None  # model.json, or the same in the safetensors header
    config: Mapping[str, Any] = field(default_factory=dict)  # config.json
    preprocessor: Mapping[str, Any] | None = None  # preprocessor_config.json
    grid: tuple[int, int] | None = None
    heads: int | None = None
    image: tuple[int, int] | None = None

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """Of a tensor that the model's sizes are read from."""
        if name not in self.tensors:
            raise WeightsError(f"{self.origin} lacks {name}, without which its sizes cannot be told.")
        shape = tuple(self.tensors[name].shape)
        if len(shape) != dimensions or 0 in shape:
            raise WeightsError(f"{self.origin} has {name} in the shape {shape}, "
                               f"where {dimensions} dimensions are expected.")
        return shape

    def has(self, name: str) -> bool:
        return name in self.tensors

    def length(self, name: str) -> int | None:
        """Of a vector whose absence means that there is no such layer."""
        return self.shape(name, 1)[0] if name in self.tensors else None

    def count(self, prefix: str) -> int:
        """How many of prefix0…, prefix1…, … there are."""
        index = 0
        while any(name.startswith((f"{prefix}{index}.", f"{prefix}{index}/")) for name in self.tensors):
            index += 1
        return index


@dataclass(frozen=True, kw_only=True)
class Content:
    """A checkpoint understood: what `build` and `load_state_dict` take."""

    config: ModelConfig
    state: dict[str, Tensor]
    metadata: Metadata


@dataclass(frozen=True, kw_only=True)
class Losses:
    """What a format would not keep of a model."""

    structure: list[str] = field(default_factory=list)  # no place for it: never written
    answers: list[str] = field(default_factory=list)  # would be read back otherwise: written with lossy=True only
    notes: list[str] = field(default_factory=list)  # written without it, and said


NEGLIGIBLE_EPS = 1e-5  # LayerNorms of trained models have variances far above this


def epsilon_loss(here: float, there: float) -> list[str]:
    return [] if here == there else [f"LayerNorm epsilon: {here:g} here, {there:g} there"]


def training_losses(config: ModelConfig) -> list[str]:
    """What only training would miss."""
    if isinstance(config, ViTConfig) and (config.dropout or config.stochastic_depth):
        return [f"dropout {config.dropout:g} and stochastic depth {config.stochastic_depth:g}: training settings"]
    return []


def find_grid(checkpoint: Checkpoint, patches: int, stride: int) -> tuple[int, int]:
    """Rows and columns of the position table: as given, as the configuration says, or square."""
    grid = checkpoint.grid
    if grid is None and checkpoint.image is not None:
        grid = checkpoint.image[0] // stride, checkpoint.image[1] // stride
    if grid is not None:
        if grid[0] * grid[1] != patches:
            raise SizeError(f"{checkpoint.origin} has positions for {patches} patches, "
                            f"not for {grid[0]} x {grid[1]} = {grid[0] * grid[1]}")
        return grid
    side = math.isqrt(patches)
    if side * side == patches:
        return side, side
    pairs = [f"({rows}, {patches // rows})" for rows in range(1, patches + 1) if patches % rows == 0]
    raise SizeError(f"{checkpoint.origin} has positions for {patches} patches, which is no square grid, "
                    "and does not say how they are laid out.",
                    try_="grid=(rows, columns); on the command line --grid ROWS COLUMNS",
                    possible=", ".join(pairs))


def find_heads(checkpoint: Checkpoint, width: int, told: int | None) -> int:
    """The number of heads: the caller's word, the configuration's, or the variant table's for this width."""
    if told and checkpoint.heads and told != checkpoint.heads:
        raise WeightsError(f"{checkpoint.origin} says it has {told} heads, not {checkpoint.heads}.")
    heads = checkpoint.heads or told
    if heads is None:
        heads = heads_by_width(width)
        if heads:
            log.info("%s: %d heads taken from its width, %d", checkpoint.origin, heads, width)
    if heads is None:
        raise WeightsError(f"{checkpoint.origin} does not tell its number of attention heads, "
                           f"and no known model has its width, {width}.",
                           try_="heads=N; on the command line --heads N")
    if width % heads:
        raise WeightsError(f"{checkpoint.origin} is {width} wide, which {heads} heads cannot share.")
    return heads


def find_image(checkpoint: Checkpoint, patches: int | None, stride: int) -> tuple[int, int]:
    """The image size that a position table is for; without a table, what the caller or the configuration says."""
    if patches is None:
        if checkpoint.grid:
            return checkpoint.grid[0] * stride, checkpoint.grid[1] * stride
        return checkpoint.image or (224 // stride * stride or stride,) * 2
    rows, columns = find_grid(checkpoint, patches, stride)
    return rows * stride, columns * stride
