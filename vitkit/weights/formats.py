"""What a format has to say of itself: how its tensors pair with ours, and what it cannot hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vitkit.errors import WeightsError
from vitkit.model.base import Metadata
from vitkit.model.config import ModelConfig, ViTConfig


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
            raise WeightsError(
                f"{self.origin} has {name} in the shape {shape}, where {dimensions} dimensions are expected."
            )
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
