"""A model as a function from images to vectors, for search, clustering and de-duplication.

Shapes: n images, B batch, C channels, V width of the vector.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.compute.embedding_model import EmbeddingPool, embedding_model, embedding_width
from vitkit.compute.inference import Precision, check_precision
from vitkit.data.sources.dataset import DataError
from vitkit.model.build import Model
from vitkit.predict.engines import precise_engine
from vitkit.predict.image_stream import ImageTask, stream_results, workers_for
from vitkit.predict.inputs import ImageInput, as_split, expand, preprocess
from vitkit.predict.prediction import NOT_FINITE
from vitkit.progress import Progress, no_progress
from vitkit.text import counted

if TYPE_CHECKING:
    from vitkit.predict.samples import Samples

BATCH = 64
SHOWN = 5  # unreadable images that the error names


@dataclass(frozen=True, eq=False)
class Embedding:
    """The vector of one image, (V,), or the reason why there is none."""

    vector: NDArray[np.float32] | None = None
    name: str | None = None  # of the file, if it was one
    error: str | None = None


class Embedder:
    """A model that turns images into vectors.

    pool        "representation", the input of the logits; "token", the class token; "gap", the mean of the patch
                tokens; "token-gap", both, the class token first
    normalise   divide each vector by its L2 norm
    precision   of the forward pass
    batch       images at a time
    """

    def __init__(
        self,
        model: Model,
        *,
        pool: EmbeddingPool = "representation",
        normalise: bool = False,
        precision: Precision = "fp32",
        batch: int = BATCH,
    ):
        self.device = next(model.parameters()).device
        check_precision(model, self.device, precision)
        self.model, self.pool, self.normalise = model, pool, normalise
        self.embedding_model = embedding_model(model, pool)
        self.width = embedding_width(model, pool)
        self.transform = preprocess(model).transform
        self.engine = replace(precise_engine(self.embedding_model, self.device, precision), batch=batch)

    def use_fast_engine(self, samples: Samples | None = None) -> None:
        """Switch to the fastest engine of this machine whose vectors agree with the exact ones on `samples`."""
        from vitkit.predict.fast import fastest_engine  # compilers and runtimes, for those who want them

        self.engine = fastest_engine(self.embedding_model, self.device, samples=samples)

    @property
    def task(self) -> ImageTask[Embedding]:
        return ImageTask(
            doing="embedding",
            transform=self.transform,
            channels=self.model.config.channels,
            device=self.device,
            batch=self.engine.batch,
            compute=self.vectors,
            result=embedding_of,
        )

    def vectors(self, images: Tensor) -> NDArray[np.float32]:
        """(B, C, height, width), preprocessed → (B, V)."""
        vectors = self.engine.logits(images)
        return (torch.nn.functional.normalize(vectors, dim=1) if self.normalise else vectors).numpy()

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
        embeddings = stream_results(self.task, as_split(inputs), workers=workers, progress=progress)
        for row, embedding in enumerate(embeddings):
            if embedding.vector is None:
                failures.append(f"{embedding.name}: {embedding.error}")
            else:
                vectors[row] = embedding.vector
        _refuse_failures(failures, len(inputs))
        return vectors


def embedding_of(
    vector: NDArray[np.float32] | None = None, /, *, name: str | None = None, error: str | None = None
) -> Embedding:
    """Return the embedding of an image; a vector that is not finite is no vector."""
    if vector is not None and not np.isfinite(vector).all():
        vector, error = None, NOT_FINITE
    return Embedding(vector, name, error)


def _refuse_failures(failures: Sequence[str], images: int) -> None:
    if failures:  # a missing row would shift all later ones against their labels
        more = [f"… and {len(failures) - SHOWN:,} more"] if len(failures) > SHOWN else []
        raise DataError(
            f"{len(failures):,} of {counted(images, 'image')} cannot be read, so they have no features.",
            such_as=[*failures[:SHOWN], *more],
            try_="leave them out; vitkit.check lists the unreadable images of a folder",
        )
