"""An exported file, opened again and asked: `open_exported("model.onnx").probabilities([pixels, …])`.

Shapes: B pictures, C channels, K classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.errors import ConfigError
from vitkit.export.metadata import exact_of, is_program, read_metadata

BATCH, PIXELS = 32, 4_000_000  # that go through the graph together


class Exported(ABC):
    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.metadata = read_metadata(path)
        self.labels = tuple(self.metadata["labels"])

    @abstractmethod
    def run(self, pictures: NDArray[Any]) -> NDArray[np.float32]:
        """What the graph takes, as its metadata say → probabilities (B, K)."""

    def probabilities(self, pictures: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
        """Pixels (height, width, C) of any sizes, as the decoder gives them → (B, K); those of one size go together."""
        ready = [self.ready(picture) for picture in pictures]
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for place, picture in enumerate(ready):
            by_shape.setdefault(picture.shape, []).append(place)
        told = np.empty((len(ready), len(self.labels)), np.float32)
        for shape, places in by_shape.items():
            step = max(1, min(BATCH, PIXELS // int(np.prod(shape))))
            for start in range(0, len(places), step):
                chosen = places[start : start + step]
                told[chosen] = self.run(np.stack([ready[place] for place in chosen]))
        return told

    def ready(self, pixels: NDArray[Any]) -> NDArray[Any]:
        """Pixels as the graph takes them, without the batch."""
        kind = self.metadata["input"]
        if kind == "tensor":
            return exact_of(self.metadata)(pixels).numpy()
        if kind == "uint8" and pixels.dtype != np.uint8:
            raise ConfigError(
                f"{self.path} takes pictures of bytes; this one is {pixels.dtype}, deeper than 8 bits.",
                try_="vitkit export … --input float32, which takes both",
            )
        return pixels.astype(kind, copy=False)


def open_exported(path: str | Path) -> Exported:
    """By content."""
    from vitkit.export.onnx_file import OnnxModel
    from vitkit.export.pt2 import Program

    return Program(path) if is_program(Path(path)) else OnnxModel(path)
