"""The options of self-attention in place of the 3x3 convolutions of a ResNet; the layers are in files of their own.

This file does not import torch, as the configuration of a model does not.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from vitkit.errors import ConfigError
from vitkit.model.options import check_count

# BoTNet (Srinivas et al. 2021), attention-augmented convolution (Bello et al. 2019), stand-alone local attention
# (Ramachandran et al. 2019), position-sensitive axial attention (Wang et al. 2020)
Kind = Literal["bottleneck", "augmented", "local", "axial"]
# the options that only one kind has
OWN: dict[str, Kind] = {
    "key_share": "augmented",
    "value_share": "augmented",
    "least_key": "augmented",
    "pool": "augmented",
    "window": "local",
}
MOST_WINDOW = 255  # pixels: over a large map, a layer keeps window² copies of its keys and values
# Up to so many times the pixels of the window, the local attention of a map is computed between all pairs of pixels,
# with -inf for those that are too far apart: more products, but no copies of keys and values. With a window of 7, a map
# of 14 x 14 pixels takes an eighth of the time on a CPU, and one of 28 x 28 would take more than with copies.
ALL_PAIRS = 4


@dataclass(frozen=True, kw_only=True)
class SpatialAttention:
    """Self-attention over the feature map, in place of the 3x3 convolutions of a ResNet's last stages."""

    kind: Kind
    heads: int
    stages: int | None = None  # so many of the last stages; None: every stage
    key_share: float = 0.2  # κ of an augmented convolution: channels of the keys / channels of the output
    value_share: float = 0.1  # υ: channels of the output that come from attention / channels of the output
    least_key: int = 20  # the least channels of a head's keys
    pool: bool = True  # whether attention in the first of the stages runs on a map of half the side
    window: int = 7  # side of the neighbourhood of local attention, in pixels of the feature map

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigError(f"attention.kind={self.kind!r} is not known", choose_from=", ".join(get_args(Kind)))
        for name in ("heads", "least_key", "window", *(() if self.stages is None else ("stages",))):
            check_count(f"attention.{name}", getattr(self, name), least=1)
        for name in ("key_share", "value_share"):
            share = getattr(self, name)
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
                raise ConfigError(f"attention.{name}={share!r} must be a number between 0 and 1")
        if not isinstance(self.pool, bool):
            raise ConfigError(f"attention.pool={self.pool!r} must be true or false")
        if self.window % 2 == 0 or self.window > MOST_WINDOW:
            raise ConfigError(f"attention.window={self.window} must be an odd number, {MOST_WINDOW} at most")
        for field in fields(self):
            kind, value = OWN.get(field.name, self.kind), getattr(self, field.name)
            if kind != self.kind and value != field.default:
                raise ConfigError(
                    f"attention.{field.name}={value!r} has no effect with attention.kind={self.kind!r}",
                    try_=f"kind={kind!r}, or no {field.name}",
                )

    def replaces(self, stage: int, stages: int) -> bool:
        """Return whether the convolutions of a stage, of so many, are replaced."""
        return stage >= self._first(stages)

    def pools(self, stage: int, stages: int) -> bool:
        """Return whether the augmented convolutions of a stage compute attention on a map of half the side."""
        return self.kind == "augmented" and self.pool and stage == self._first(stages)

    def _first(self, stages: int) -> int:
        return 0 if self.stages is None else max(stages - self.stages, 0)

    def channels(self, width: int) -> tuple[int, int]:
        """Return the channels of all heads' keys, equal to those of the queries, and those of their values."""
        if self.kind == "axial":
            return width // 2, width
        if self.kind != "augmented":
            return width, width
        key = max(int(self.key_share * width) // self.heads, self.least_key)
        return key * self.heads, max(int(self.value_share * width) // self.heads, 1) * self.heads

    def check_width(self, width: int) -> None:
        """Raise an error for a number of channels that the heads cannot share."""
        if self.kind == "augmented":
            fits = self.channels(width)[1] < width  # something is left for the convolution
        else:  # rows and columns have half of a local head each; axial keys are half as wide as their values
            fits = width % (self.heads if self.kind == "bottleneck" else 2 * self.heads) == 0
        if not fits:
            raise ConfigError(
                f"{width} channels cannot be shared by the {self.heads} heads of {self.kind} attention",
                try_="attention.heads=…, a smaller number of heads, or a wider body",
            )


def takes_all_pairs(pixels: int, window: int) -> bool:
    """Return whether local attention over a map of so many pixels is computed between all pairs of them."""
    return pixels <= ALL_PAIRS * window**2
