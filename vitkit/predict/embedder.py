"""A model as a function from images to vectors, for search, clustering and de-duplication.

Shapes: n images, B batch, C channels, V width of the vector.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.compute.embedding_model import EmbeddingPool, embedding_model, embedding_width
from vitkit.compute.inference import Precision, check_precision
from vitkit.data.sources.dataset import DataError
from vitkit.model.build import Model
from vitkit.predict.engines import precise_engine
from vitkit.predict.image_stream import ImageOutputs, ImageTask, stream_outputs, workers_for
from vitkit.predict.inputs import ImageInput, as_split, expand, preprocess
from vitkit.predict.prediction import NOT_FINITE
from vitkit.predict.stored_columns import FLOAT32, encode_column, encode_errors
from vitkit.progress import Progress, no_progress
from vitkit.text import counted

if TYPE_CHECKING:
    from vitkit.predict.samples import Samples

SHOWN = 5  # unreadable images that the error names


@dataclass(frozen=True, eq=False)
class EmbeddingColumns:
    """The vectors of images, a row for each, nan where there is an error instead."""

    vectors: NDArray[np.float32]  # (n, V)
    errors: Mapping[int, str]  # row → why there is no vector

    def __len__(self) -> int:
        return len(self.vectors)

    @classmethod
    def join(cls, blocks: Sequence[EmbeddingColumns]) -> EmbeddingColumns:
        """Return the rows of several blocks as one."""
        firsts = np.cumsum([0, *map(len, blocks)]).tolist()
        errors = {
            first + row: error for first, one in zip(firsts, blocks, strict=False) for row, error in one.errors.items()
        }
        return cls(np.concatenate([block.vectors for block in blocks]), errors)

    def select(self, first: int, stop: int) -> EmbeddingColumns:
        """Return the rows from `first` to `stop`."""
        errors = {row - first: error for row, error in self.errors.items() if first <= row < stop}
        return EmbeddingColumns(self.vectors[first:stop], errors)

    def stored(self) -> StoredEmbeddings:
        """Return the rows as a journal holds them."""
        return StoredEmbeddings(
            images=len(self), errors=encode_errors(self.errors), vectors=encode_column(self.vectors, FLOAT32)
        )


class StoredEmbeddings(TypedDict):
    """Rows as a journal holds them, those of a batch."""

    images: int
    errors: list[tuple[int, str]]
    vectors: str


class Embedder:
    """A model that turns images into vectors.

    pool        "representation", the input of the logits; "token", the class token; "gap", the mean of the patch
                tokens; "token-gap", both, the class token first
    normalise   divide each vector by its L2 norm
    precision   of the forward pass
    batch       images at a time; default: as many as suit the device
    """

    def __init__(
        self,
        model: Model,
        *,
        pool: EmbeddingPool = "representation",
        normalise: bool = False,
        precision: Precision = "fp32",
        batch: int | None = None,
    ):
        self.device = next(model.parameters()).device
        check_precision(model, self.device, precision)
        self.model, self.pool, self.normalise = model, pool, normalise
        self.embedding_model = embedding_model(model, pool)
        self.width = embedding_width(model, pool)
        self.transform = preprocess(model).transform
        self.engine = precise_engine(self.embedding_model, self.device, precision)
        if batch is not None:
            self.engine = replace(self.engine, batch=batch)

    def use_fast_engine(self, samples: Samples | None = None) -> None:
        """Switch to the fastest engine of this machine whose vectors agree with the exact ones on `samples`."""
        from vitkit.predict.fast import fastest_engine  # compilers and runtimes, for those who want them

        self.engine = fastest_engine(self.embedding_model, self.device, samples=samples)

    @property
    def task(self) -> ImageTask:
        return ImageTask(
            doing="embedding",
            transform=self.transform,
            channels=self.model.config.channels,
            device=self.device,
            batch=self.engine.batch,
            compute=lambda images: (self._vectors(images),),
        )

    def columns(self, batch: ImageOutputs) -> EmbeddingColumns:
        """Return the vectors of a batch; one that is not finite is no vector."""
        vectors = batch.column(0, self.width, np.float32, missing=np.nan)
        finite = np.isfinite(vectors).all(axis=1)
        errors = {int(row): NOT_FINITE for row in np.flatnonzero(~finite)} | batch.errors
        return EmbeddingColumns(vectors if finite.all() else np.where(finite[:, None], vectors, np.nan), errors)

    def vectors(self, images: Tensor) -> NDArray[np.float32]:
        """(B, C, height, width), preprocessed → (B, V)."""
        return self._vectors(images).cpu().numpy()

    def _vectors(self, images: Tensor) -> Tensor:
        vectors = self.engine.logits(images)
        return torch.nn.functional.normalize(vectors, dim=1) if self.normalise else vectors

    def __call__(
        self,
        images: ImageInput | Iterable[ImageInput],
        *,
        workers: int | None = 0,
        progress: Progress = no_progress,
    ) -> NDArray[np.float32]:
        """Return (n, V), a row for each image in their order; an unreadable image is an error that names it."""
        inputs = expand(images)
        if not inputs:
            raise DataError("no images named.", try_="files, a folder of them, or a pattern")
        in_files = all(isinstance(image, str | os.PathLike) for image in inputs)  # open files cannot go to workers
        workers = workers_for(len(inputs), workers, self.device) if in_files else 0
        vectors = np.empty((len(inputs), self.width), np.float32)
        failures: list[str] = []
        split = as_split(inputs)
        for batch in stream_outputs(self.task, split, workers=workers, progress=progress):
            columns = self.columns(batch)
            vectors[batch.first : batch.first + len(batch)] = columns.vectors
            failures += [f"{split.keys[batch.first + row]}: {columns.errors[row]}" for row in sorted(columns.errors)]
        _refuse_failures(failures, len(inputs))
        return vectors


def _refuse_failures(failures: Sequence[str], images: int) -> None:
    if failures:  # a missing row would shift all later ones against their labels
        more = [f"… and {len(failures) - SHOWN:,} more"] if len(failures) > SHOWN else []
        raise DataError(
            f"{len(failures):,} of {counted(images, 'image')} cannot be read, so they have no features.",
            such_as=[*failures[:SHOWN], *more],
            try_="leave them out; vitkit.check lists the unreadable images of a folder",
        )
