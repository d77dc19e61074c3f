"""The preprocessing that belongs to a model: plain data, stored with the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from vitkit.errors import ConfigError

Resize = Literal["crop", "squash", "letterbox"]
Interpolation = Literal["bilinear", "bicubic"]


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Resize, crop and normalisation. The defaults, for weights without a record: short side, centre crop, [-1, 1]."""

    resize: Resize = "crop"
    crop: float = 1.0  # the short side is resized to (model's size / crop), then the centre is cut out
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        if self.resize not in get_args(Resize) or self.interpolation not in get_args(Interpolation):
            raise ConfigError(
                f"preprocessing by {self.resize!r}, {self.interpolation!r} is unknown",
                resize=", ".join(get_args(Resize)),
                interpolation=", ".join(get_args(Interpolation)),
            )
        if not 0 < self.crop <= 1:
            raise ConfigError(f"crop={self.crop} is a share: above 0, at most 1")
        if len(self.mean) != len(self.std) or not self.mean or min(self.std) <= 0:
            raise ConfigError(f"mean={self.mean} and std={self.std} must pair, with deviations above 0")

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Preprocessing:
        """Invert dataclasses.asdict, also after JSON."""
        try:
            fields: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in record.items()
            }
            return cls(**fields)
        except (TypeError, AttributeError) as error:
            raise ConfigError(f"this record of preprocessing cannot be used: {error}") from error
