"""A trained model as a function of images: paths, bytes, open files, PIL images or arrays → labels and probabilities.

    classifier = vitkit.Classifier("runs/pets")
    classifier("cat.jpg").label
    for prediction in classifier(["a.jpg", pil_image, array]): print(prediction.top(3))

Shapes: B images, C channels, K classes, V width of a vector.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.compute.embedding_model import EmbeddingPool
from vitkit.compute.pipeline import Outputs
from vitkit.devices import pick_device
from vitkit.errors import ConfigError, DecodeError, WeightsError
from vitkit.model.build import Model, shared_copy
from vitkit.model.segmenter import Segmenter
from vitkit.predict.answer_columns import compute_answers
from vitkit.predict.embedder import Embedder
from vitkit.predict.engines import Engine, exact_engine
from vitkit.predict.image_stream import ImageTask
from vitkit.predict.inputs import SINGLE_IMAGE, ImageInput, file_name, not_an_image, preprocess
from vitkit.predict.prediction import THRESHOLD, Prediction, probabilities_of, to_probabilities
from vitkit.weights.load import load

if TYPE_CHECKING:
    from vitkit.predict.samples import Samples


class Classifier:
    """A trained model that classifies images, with the same results as `vitkit evaluate`.

    source   a run folder, a weights file, hf:OWNER/NAME, "ti16" (inside vitkit) or a model
    device   "auto", "cpu", "cuda", "cuda:1" …; default: cpu, or the device of the given model
    image    another size than the model's own; positions are resized
    labels   class names, in the order of the logits, for weights that carry none
    fast     the fastest engine of this machine instead of the exact one; `classifier.engine.description` names it
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Model,
        *,
        device: str | None = None,
        image: int | tuple[int, int] | None = None,
        labels: Sequence[str] | None = None,
        fast: bool = False,
    ):
        if isinstance(source, str | os.PathLike):
            self.model, self.device = load(source, image=image), pick_device(device or "cpu")
        else:
            model_device = next(source.parameters()).device
            self.device = model_device if device is None else pick_device(device)
            # the caller's model keeps its mode and device
            self.model = shared_copy(source) if model_device == self.device else copy.deepcopy(source)
        self.model.eval()
        if isinstance(self.model, Segmenter):
            raise ConfigError(
                f"{source if isinstance(source, str | os.PathLike) else 'the model'} is {self.model.kind}, which gives "
                "every pixel a class, and an image none.",
                try_="vitkit.ImageSegmenter, or the weights of a classifier",
            )
        config, metadata = self.model.config, self.model.metadata
        check_has_classes(self.model, os.fspath(source) if isinstance(source, str | os.PathLike) else "the model")
        if labels is not None:
            if len(labels) != config.classes:
                raise ConfigError(f"{len(labels)} class names for a model of {config.classes} classes")
            metadata = self.model.metadata = replace(metadata, labels=tuple(labels))
        # other people's weights may carry no names; an index is still an answer
        self.labels = metadata.labels or tuple(map(str, range(config.classes)))
        self.multilabel = metadata.multilabel  # each class on its own: cat yes, dog yes
        self.thresholds: tuple[float, ...] | None = None  # the probability from which each class is predicted
        if self.multilabel:
            self.thresholds = metadata.thresholds or (THRESHOLD,) * config.classes
        self.preprocess = preprocess(self.model)  # image in any form → (C, height, width); DecodeError if unreadable
        self.transform = self.preprocess.transform
        self.engine: Engine = exact_engine(self.model, self.device)
        self._embedders: dict[tuple[EmbeddingPool, bool], Embedder] = {}
        if fast:
            from vitkit.predict.samples import find_samples

            if isinstance(source, str | os.PathLike):
                self.use_fast_engine(find_samples(os.fspath(source), self.model))
            else:
                self.use_fast_engine()

    def use_fast_engine(self, samples: Samples | None = None) -> None:
        """Switch to the fastest engine of this machine that agrees with the exact one on `samples`.

        Without samples, the images inside the package serve for the comparison.
        """
        from vitkit.predict.fast import fastest_engine  # compilers and runtimes, for those who want them

        self.engine = fastest_engine(self.model, self.device, multilabel=self.multilabel, samples=samples)

    @overload
    def __call__(self, images: ImageInput) -> Prediction: ...  # type: ignore[overload-overlap]  # a str is one path
    @overload
    def __call__(self, images: Iterable[ImageInput]) -> list[Prediction]: ...
    def __call__(self, images: ImageInput | Iterable[ImageInput]) -> Prediction | list[Prediction]:
        """Return the prediction for one image, or a list for several; an unreadable image has an `error` instead."""
        if isinstance(images, SINGLE_IMAGE):
            return self([images])[0]
        if not isinstance(images, Iterable):
            raise not_an_image(images)
        predictions: list[Prediction] = []
        batch: list[tuple[int, Tensor]] = []
        for index, image in enumerate(images):
            try:
                batch.append((index, self.preprocess(image)))
                predictions.append(self.prediction(name=file_name(image)))
            except DecodeError as error:
                predictions.append(self.prediction(name=file_name(image), error=str(error)))
            if len(batch) == self.engine.batch:
                self._predict(batch, predictions)
        self._predict(batch, predictions)
        return predictions

    def _predict(self, batch: list[tuple[int, Tensor]], predictions: list[Prediction]) -> None:
        """Fill in the probabilities of a batch and empty it."""
        if batch:
            rows = self.probabilities(torch.stack([image for _, image in batch]))
            for (index, _), row in zip(batch, rows, strict=True):
                predictions[index] = replace(predictions[index], probabilities=row)
            batch.clear()

    def prediction(
        self, probabilities: NDArray[np.float32] | None = None, /, *, name: str | None = None, error: str | None = None
    ) -> Prediction:
        """Return a prediction of this classifier's classes from (K,) probabilities, or with an error instead."""
        row = np.empty(0, np.float32) if probabilities is None else probabilities
        return Prediction(self.labels, row, name=name, error=error, thresholds=self.thresholds)

    @property
    def task(self) -> ImageTask:
        """The probabilities of all classes for many images, as streams of files take it."""
        return self._task(lambda probabilities: (probabilities,))

    def answers_task(self, top: int) -> ImageTask:
        """Return the task of `compute_answers`: the most likely classes of many images."""
        return self._task(lambda probabilities: compute_answers(probabilities, top, self.multilabel))

    def _task(self, outputs: Callable[[Tensor], Outputs]) -> ImageTask:
        return ImageTask(
            doing="predicting",
            transform=self.transform,
            channels=self.model.config.channels,
            device=self.device,
            batch=self.engine.batch,
            compute=lambda images: outputs(probabilities_of(self.engine.logits(images), self.multilabel)),
        )

    def probabilities(self, images: Tensor) -> NDArray[np.float32]:
        """(B, C, height, width), preprocessed → (B, K)."""
        return to_probabilities(self.engine.logits(images), self.multilabel)

    def embed(
        self,
        images: Tensor | ImageInput | Iterable[ImageInput],
        *,
        pool: EmbeddingPool = "representation",
        normalise: bool = False,
    ) -> NDArray[np.float32]:
        """Return a vector for each image, (B, V), for search, clustering and de-duplication.

        `pool` is "representation", what the logits are computed from, as in `vitkit probe`; "token", the class token;
        "gap", the mean of the patch tokens; "token-gap", both. `normalise` divides each vector by its L2 norm. The
        images come in any form that a prediction takes, or as a preprocessed tensor (B, C, height, width).
        """
        embedder = self._embedders.get((pool, normalise))
        if embedder is None:
            embedder = self._embedders[pool, normalise] = Embedder(self.model, pool=pool, normalise=normalise)
        return embedder.vectors(images) if isinstance(images, Tensor) else embedder(images)


def check_has_classes(model: Model, name: str) -> None:
    """Raise a WeightsError for a model without a head; `name` is what its user calls it."""
    if not model.config.classes:
        raise WeightsError(
            f"{name} has no classes to predict: it was pre-trained without labels, or its head was removed.",
            try_="vitkit fit DATA --weights RUN, then use that run",
        )
