"""The types that the four weight formats share: opened checkpoints, loaded weights, and losses of a conversion."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vitkit.errors import WeightsError
from vitkit.model.allow_list import AllowList
from vitkit.model.base import Metadata
from vitkit.model.config import ModelConfig
from vitkit.model.options import Gelu


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """An opened file or folder: its tensors and JSON files, and the sizes that the caller passed."""

    origin: str
    tensors: Mapping[str, Tensor]
    record: Mapping[str, Any] | None = None  # model.json, or the same in the safetensors header
    config: Mapping[str, Any] = field(default_factory=dict)  # config.json
    preprocessor: Mapping[str, Any] | None = None  # preprocessor_config.json
    licence: str | None = None  # as README.md or config.json states it
    grid: tuple[int, int] | None = None
    heads: int | None = None
    gelu: Gelu | None = None
    image: tuple[int, int] | None = None

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """Return the shape of a tensor that the model's sizes are inferred from."""
        if name not in self.tensors:
            raise WeightsError(f"{self.origin} lacks {name}, which its sizes are inferred from.")
        shape = tuple(self.tensors[name].shape)
        if len(shape) != dimensions or 0 in shape:
            raise WeightsError(
                f"{self.origin} has {name} in the shape {shape}, where {dimensions} dimensions are expected."
            )
        return shape

    def has(self, name: str) -> bool:
        return name in self.tensors

    def length(self, name: str) -> int | None:
        """Return the length of a vector, or None where the model lacks that layer."""
        return self.shape(name, 1)[0] if name in self.tensors else None

    def count(self, prefix: str) -> int:
        """Return how many layers prefix0…, prefix1…, … there are."""
        index = 0
        while any(name.startswith((f"{prefix}{index}.", f"{prefix}{index}/")) for name in self.tensors):
            index += 1
        return index


@dataclass(frozen=True, kw_only=True)
class LoadedWeights:
    """A checkpoint in vitkit's terms: what `build` and `load_state_dict` take."""

    config: ModelConfig
    state: dict[str, Tensor]
    metadata: Metadata


@dataclass(frozen=True, kw_only=True)
class ConversionLosses:
    """The parts of a model that a format would not keep."""

    unsupported: list[str] = field(default_factory=list)  # the format cannot hold it: never written
    changed: list[str] = field(default_factory=list)  # would change the logits: written with lossy=True only
    dropped: list[str] = field(default_factory=list)  # written without it, with a warning


NEGLIGIBLE_EPS = 1e-5  # LayerNorms of trained models have variances far above this


def epsilon_difference(ours: float, theirs: float) -> list[str]:
    return [] if ours == theirs else [f"LayerNorm epsilon: {ours:g} in the model, {theirs:g} in the format"]


def training_settings(config: ModelConfig) -> list[str]:
    """Return the settings that only training uses and no foreign format keeps."""
    values = {name: getattr(config, name, 0) for name in ("dropout", "stochastic_depth")}
    if not any(values.values()):
        return []
    dropout, depth = values.values()
    return [f"dropout {dropout:g} and stochastic depth {depth:g}: training settings"]


def unknown_options(known: AllowList, config: ModelConfig) -> list[str]:
    """Return the first option of a config that a format does not know, as a sentence; new options are on no list."""
    reason = known.reason_to_decline(config)
    return [] if reason is None else [reason]
