"""An exported file, opened again: `open_exported("model.onnx").probabilities([pixels, …])`, or `.masks([pixels, …])`.

Shapes: B images, C channels, K classes, h' x w' grid of scores, h x w image.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.compute.onnx_session import quietly, start_session
from vitkit.errors import ConfigError, WeightsError
from vitkit.export.metadata import is_pt2, read_metadata, task_of, transform_of
from vitkit.export.pt2 import refuse_pickles
from vitkit.export.trace import OUTPUTS

MAX_BATCH, MAX_VALUES = 32, 4_000_000  # images, and values of all of them, in one batch


class ExportedModel(ABC):
    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.metadata = read_metadata(path)
        self.labels = tuple(self.metadata["labels"])

    @abstractmethod
    def run(self, images: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Run the graph on the input that its metadata describe and return its two outputs.

        They are probabilities and logits (B, K); or masks (B, h, w) uint8 and scores (B, K, h', w').
        """

    def probabilities(self, images: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
        """Decoded pixels (height, width, C) of any sizes → (B, K); images of one size share batches."""
        probabilities = np.empty((len(images), len(self.labels)), np.float32)
        for indices, (batch, _) in self._run_batches(images):
            probabilities[indices] = batch
        return probabilities

    def masks(self, images: Sequence[NDArray[Any]]) -> list[tuple[NDArray[np.uint8], NDArray[np.float32]]]:
        """Decoded pixels (h, w, C) of any sizes → the mask (h, w) and the scores (K, h', w') of each."""
        outputs = {
            index: (mask, scores)
            for indices, batch in self._run_batches(images)
            for index, mask, scores in zip(indices, *batch, strict=True)
        }
        return [outputs[index] for index in range(len(images))]

    def _run_batches(
        self, images: Sequence[NDArray[Any]]
    ) -> Iterator[tuple[list[int], tuple[NDArray[Any], NDArray[np.float32]]]]:
        """Yield the indices of images of one size, and the outputs for them."""
        inputs = [self.prepare(pixels) for pixels in images]
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for index, prepared in enumerate(inputs):
            by_shape.setdefault(prepared.shape, []).append(index)
        for shape, indices in by_shape.items():
            step = max(1, min(MAX_BATCH, MAX_VALUES // int(np.prod(shape))))
            for start in range(0, len(indices), step):
                batch = indices[start : start + step]
                yield batch, self.run(np.stack([inputs[index] for index in batch]))

    def prepare(self, pixels: NDArray[Any]) -> NDArray[Any]:
        """Return pixels as the graph takes them, without the batch dimension."""
        kind = self.metadata["input"]
        if kind == "tensor":
            return transform_of(self.metadata)(pixels).numpy()
        if kind == "uint8" and pixels.dtype != np.uint8:
            raise ConfigError(
                f"{self.path} takes images of 8 bits; this one is {pixels.dtype}, which is deeper.",
                try_="vitkit export … --input float32, which takes both",
            )
        return pixels.astype(kind, copy=False)


class OnnxModel(ExportedModel):
    def __init__(self, path: str | Path):
        super().__init__(path)
        try:
            self.session = start_session(str(path))
        except Exception as error:  # its own classes, which have no common parent
            raise WeightsError(f"{path} is not a file that onnxruntime can load: {error}") from error

    def run(self, images: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float32]]:
        [graph_input] = self.session.get_inputs()  # older files have another name for it
        first, second = self.session.run(OUTPUTS[task_of(self.metadata)], {graph_input.name: images})
        return first, second


class Pt2Model(ExportedModel):
    def __init__(self, path: str | Path):
        super().__init__(path)
        refuse_pickles(self.path)
        try:
            with self.path.open("rb") as file, quietly():
                self.module = torch.export.load(file).module()
        except Exception as error:  # whichever torch raises first for a damaged archive
            raise WeightsError(f"{path} is not a program that torch {torch.__version__} can load: {error}") from error

    def run(self, images: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float32]]:
        with torch.inference_mode():
            first, second = self.module(torch.from_numpy(images))
        return first.numpy(), second.numpy()


def open_exported(path: str | Path) -> ExportedModel:
    """Open a .onnx or .pt2 file, by its content."""
    return Pt2Model(path) if is_pt2(Path(path)) else OnnxModel(path)
