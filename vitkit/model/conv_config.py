"""The configuration of a group-normalised ResNet without its head: a hybrid's stem or a BiT classifier's body.

This file does not import torch, as the configuration of a model does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitkit.errors import ConfigError
from vitkit.model.options import GROUPS, MOST, MOST_WIDTH, EpsilonOn

MOST_STAGES = 8


@dataclass(frozen=True, kw_only=True)
class ConvConfig:
    """A group-normalised, weight-standardised ResNet without its head: a hybrid's stem or a BiT classifier's body."""

    layers: tuple[int, ...]  # bottleneck units per stage; () is the root alone
    width: int = 64  # channels of the root; stage s puts out 4 · width · 2^s
    preactivation: bool = False  # BiT is pre-activation (v2), the hybrid's stem is post-activation
    # Google's hybrid divides kernels by (std + 1e-5), BiT and timm by sqrt(variance + a smaller epsilon).
    standardise_eps: float = 1e-5
    standardise_on: EpsilonOn = "std"
    norm_eps: float = 1e-6

    @classmethod
    def bit(cls, layers: tuple[int, ...], width: int) -> ConvConfig:
        """Return the body of a BiT ResNet, as in big_transfer."""
        return cls(
            layers=layers,
            width=width,
            preactivation=True,
            standardise_eps=1e-10,
            standardise_on="variance",
            norm_eps=1e-5,
        )

    def __post_init__(self) -> None:
        units_fit = all(0 < units <= MOST["depth"] for units in self.layers) and len(self.layers) <= MOST_STAGES
        if not 0 < self.width <= MOST_WIDTH >> MOST_STAGES or self.width % GROUPS or not units_fit:
            raise ConfigError(
                f"a ResNet of width {self.width} and {self.layers} units per stage cannot be built",
                needed=f"a width that {GROUPS} normalisation groups can share, a unit in each stage",
            )

    @property
    def stride(self) -> int:
        return 4 * 2 ** max(len(self.layers) - 1, 0)

    @property
    def channels_out(self) -> int:
        return 4 * self.width * 2 ** (len(self.layers) - 1) if self.layers else self.width
