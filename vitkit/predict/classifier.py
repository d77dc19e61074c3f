"""A trained model as a function of pictures: paths, bytes, open files, PIL images or arrays → names and probabilities.

    classifier = vitkit.Classifier("runs/pets")
    classifier("cat.jpg").label
    for prediction in classifier(["a.jpg", picture, array]): print(prediction.top(3))

Shapes: B pictures, C channels, K classes, D width of the representation.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.data.transforms import Exact
from vitkit.devices import pick_device
from vitkit.errors import ConfigError, DecodeError, WeightsError
from vitkit.model.build import Model
from vitkit.predict.engine import Engine, exact
from vitkit.predict.inputs import ONE, Given, name_of, no_picture, pixels_of
from vitkit.predict.prediction import Prediction
from vitkit.weights.load import load

if TYPE_CHECKING:
    from vitkit.predict.samples import Samples


class Classifier:
    """A run folder, a weights file or hf:OWNER/NAME, ready to be asked; the same answers as `vitkit evaluate`.

    device   cpu, or where a model is that is given, unless said: "auto", "cuda", "cuda:1" …
    image    another size than the model's own; positions are resized
    labels   class names, in the order of the logits, for weights that carry none
    fast     the quickest way that this machine has, instead of the exact one; `classifier.engine.words` tells which
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
            here = next(source.parameters()).device
            self.device = here if device is None else pick_device(device)
            self.model = _beside(source, weights=here == self.device)
        self.model.eval()
        config, metadata = self.model.config, self.model.metadata
        if not config.classes:
            raise WeightsError(
                f"{source if isinstance(source, str | os.PathLike) else 'the model'} has no classes to "
                "answer with: it was pre-trained, or its head was taken off.",
                try_="vitkit fit DATA --weights RUN, then ask that run",
            )
        if labels is not None:
            if len(labels) != config.classes:
                raise ConfigError(f"{len(labels)} class names for a model of {config.classes} classes")
            metadata = self.model.metadata = replace(metadata, labels=tuple(labels))
        # weights of others may carry no names; a number is still an answer
        self.labels = metadata.labels or tuple(map(str, range(config.classes)))
        self.multilabel = bool(metadata.provenance.get("multilabel"))  # each class on its own: cat yes, dog yes
        self.exact = Exact(image=config.image, preprocessing=metadata.preprocessing)
        self.engine: Engine = exact(self.model, self.device)
        if fast:
            from vitkit.predict.samples import find_samples

            self.quicken(find_samples(os.fspath(source), self.model) if isinstance(source, str | os.PathLike) else None)

    def quicken(self, samples: Samples | None = None) -> None:
        """From now on the quickest way that this machine has and that agrees with the exact one on real pictures:
        `samples`, or those inside the package."""
        from vitkit.predict.fast import quicken  # compilers and runtimes, for those who want them

        self.engine = quicken(self, samples)

    @overload
    def __call__(self, pictures: Given) -> Prediction: ...  # type: ignore[overload-overlap]  # a str is one path
    @overload
    def __call__(self, pictures: Iterable[Given]) -> list[Prediction]: ...
    def __call__(self, pictures: Given | Iterable[Given]) -> Prediction | list[Prediction]:
        """One picture → its prediction; several → a list, in order. One that cannot be read has an `error` instead."""
        if isinstance(pictures, ONE):
            return self([pictures])[0]
        if not isinstance(pictures, Iterable):
            raise no_picture(pictures)
        predictions: list[Prediction] = []
        waiting: list[tuple[int, Tensor]] = []
        for place, picture in enumerate(pictures):
            try:
                waiting.append((place, self.see(picture)))
                predictions.append(Prediction(self.labels, name=name_of(picture)))
            except DecodeError as error:
                predictions.append(Prediction(self.labels, name=name_of(picture), error=str(error)))
            if len(waiting) == self.engine.batch:
                self._answer(waiting, predictions)
        self._answer(waiting, predictions)
        return predictions

    def _answer(self, waiting: list[tuple[int, Tensor]], predictions: list[Prediction]) -> None:
        if waiting:
            told = self.probabilities(torch.stack([image for _, image in waiting]))
            for (place, _), row in zip(waiting, told, strict=True):
                predictions[place] = replace(predictions[place], probabilities=row)
            waiting.clear()

    def see(self, picture: Given) -> Tensor:
        """(C, height, width): what the model is shown of a picture, preprocessed; a DecodeError where it is none."""
        return self.exact(self._pixels(picture))

    def frame(self, picture: Given) -> Tensor:
        """(C, height, width) on 0 to 255: the same, to look at."""
        return self.exact.frame(self._pixels(picture))

    def _pixels(self, picture: Given) -> NDArray[Any]:
        return pixels_of(picture, channels=self.model.config.channels)

    def probabilities(self, images: Tensor) -> NDArray[np.float32]:
        """(B, C, height, width), preprocessed → (B, K)."""
        return probabilities(self.engine.logits(images), self.multilabel)

    def embed(self, images: Tensor) -> NDArray[np.float32]:
        """(B, C, height, width), preprocessed → (B, D): what the logits are made of, as in `vitkit probe`."""
        with torch.inference_mode():
            _, seen = self.model(images.to(self.device), capture=("representation",))
        return seen["representation"].float().cpu().numpy()


def probabilities(logits: Tensor, multilabel: bool) -> NDArray[np.float32]:
    """(B, K) → (B, K): of one answer among many, or of each class on its own."""
    return (logits.sigmoid() if multilabel else logits.softmax(dim=-1)).numpy()


def _beside(model: Model, *, weights: bool) -> Model:
    """A twin to ask, with the same weights or copies of them: the caller's stays as it is, and where it is."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared if weights else None)
