"""What a picture goes through before a model sees it: plain data, stored with the weights and never apart from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Resize = Literal["crop", "squash", "letterbox"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The defaults are what weights without a record get: short side to the model's size, centre crop, [-1, 1]."""

    resize: Resize = "crop"
    crop: float = 1.0  # the short side is resized to (model's size / crop), then the centre is cut out
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
