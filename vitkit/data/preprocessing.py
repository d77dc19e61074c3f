"""The preprocessing that belongs to a model: plain data, stored with the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from vitkit.errors import ConfigError
from vitkit.stored_json import conform

Resize = Literal["crop", "squash", "letterbox"]
Interpolation = Literal["bilinear", "bicubic"]
# Whose code the sizes and offsets are rounded as, in `geometry.py`: a pixel more or less changes answers. Records of
# earlier versions have no such field, and mean vitkit.
Rounding = Literal["vitkit", "timm", "transformers"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Preprocessing:
    """Resize, crop and normalisation. The defaults, for weights without a record: short side, centre crop, [-1, 1]."""

    resize: Resize = "crop"
    crop: float = 1.0  # the short side is resized to (model's size / crop), then the centre is cut out
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    rounding: Rounding = "vitkit"
    origin: str = field(default="", compare=False)  # who says so, where the weights themselves do not

    def __post_init__(self) -> None:
        for name, choices in (("resize", Resize), ("interpolation", Interpolation), ("rounding", Rounding)):
            if getattr(self, name) not in get_args(choices):
                raise ConfigError(
                    f"preprocessing with {name} {getattr(self, name)!r} is unknown",
                    choose_from=", ".join(get_args(choices)),
                )
        if not 0 < self.crop <= 1:
            raise ConfigError(f"crop={self.crop} is a share: above 0, at most 1")
        finite = all(map(math.isfinite, (*self.mean, *self.std)))
        if len(self.mean) != len(self.std) or not self.mean or not finite or min(self.std) <= 0:
            raise ConfigError(f"mean={self.mean} and std={self.std} must pair, with deviations above 0")

    def __repr__(self) -> str:
        """Return what images depend on; as before the field `rounding`, whose absence cached features rely on."""
        shown = [spec.name for spec in fields(self) if spec.compare and (spec.name != "rounding" or self.rounded_as)]
        return f"Preprocessing({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @property
    def rounded_as(self) -> str | None:
        """Return whose code sizes are rounded as, or None for vitkit's own."""
        return None if self.rounding == "vitkit" else self.rounding

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Preprocessing:
        """Invert dataclasses.asdict, also after JSON."""
        what = "this record of preprocessing"
        known = {spec.name for spec in fields(cls)}
        table: dict[str, Any] = conform(record, dict[str, Any], what, error=ConfigError)
        if unknown := sorted(table.keys() - known):  # which would change the images
            raise ConfigError(f"{what} cannot be used: {unknown[0]!r} is unknown")
        preprocessing: Preprocessing = conform(table, cls, what, error=ConfigError)
        return preprocessing

    def override(
        self,
        *,
        resize: Resize | None = None,
        crop: float | None = None,
        interpolation: Interpolation | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        channels: int = 3,
    ) -> Preprocessing:
        """Return a copy with other values, which says so; None keeps a value, one number serves every channel."""
        changes: dict[str, Any] = {"resize": resize, "crop": crop, "interpolation": interpolation}
        for name, values in (("mean", mean), ("std", std)):
            if values is not None and len(values) not in (1, channels):
                raise ConfigError(f"--{name}: 1 or {channels} numbers are needed; found {len(values)}")
            changes[name] = None if values is None else values * (channels // len(values))
        changes = {name: value for name, value in changes.items() if value is not None}
        if not changes:
            return self
        for name, kept in (("mean", self.mean), ("std", self.std)):  # a single number of old records serves all too
            if name not in changes and len(kept) == 1:
                changes[name] = kept * channels
        requested = [name for name in ("resize", "crop", "interpolation", "mean", "std") if name in changes]
        if (resize or self.resize) == "letterbox" and crop is not None and self.rounding != "timm":
            raise ConfigError("--crop has no effect on a letterbox, which shows all of the image")
        return replace(self, **changes, origin=f"{', '.join(requested)} as requested")
