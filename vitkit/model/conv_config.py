"""The configuration of a group-normalised ResNet without its head: a hybrid's stem or a BiT classifier's body.

This file does not import torch, as the configuration of a model does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitkit.errors import ConfigError
from vitkit.model.options import GROUPS, MOST, MOST_WIDTH, EpsilonOn
from vitkit.model.spatial_attention import SpatialAttention

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
    attention: SpatialAttention | None = None  # in place of the 3x3 convolutions of the last stages

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
        if not (self.attention is None or isinstance(self.attention, SpatialAttention)):
            raise ConfigError(
                f"attention={self.attention!r} should be a SpatialAttention", try_="a name, such as BoT50, or its kind"
            )
        for stage in range(len(self.layers)):
            if attention := self.attention_in(stage):
                attention.check_width(self.width * 2**stage)

    def attention_in(self, stage: int) -> SpatialAttention | None:
        """Return the attention that replaces the 3x3 convolutions of a stage, if there is one."""
        return self.attention if self.attention and self.attention.replaces(stage, len(self.layers)) else None

    def grid(self, image: tuple[int, int], stage: int) -> tuple[int, int]:
        """Return the rows and columns of a stage's feature map."""
        stride = 4 * 2**stage
        return -(-image[0] // stride), -(-image[1] // stride)

    @property
    def stride(self) -> int:
        return 4 * 2 ** max(len(self.layers) - 1, 0)

    @property
    def channels_out(self) -> int:
        return 4 * self.width * 2 ** (len(self.layers) - 1) if self.layers else self.width
