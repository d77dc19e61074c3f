"""A trained segmentation model as a function of images: paths, bytes, open files, PIL images or arrays → masks.

    segmenter = vitkit.ImageSegmenter("runs/streets")
    segmented = segmenter("street.jpg")
    segmented.mask, segmented.shares
    segmented.save("street.png")

Shapes: B images, C channels, h x w pixels of one image.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitkit.compute.segment import ComputeMask, PredictedMask, exact_scores, probabilities_of_scores, trained_size
from vitkit.compute.windows import is_large
from vitkit.data.masks.palette import Palette, stored_palette
from vitkit.devices import pick_device
from vitkit.errors import ConfigError, DecodeError, WeightsError
from vitkit.model.build import Model, shared_copy
from vitkit.model.segmenter import Segmenter
from vitkit.pages.mask_overlay import draw_mask
from vitkit.predict.inputs import SINGLE_IMAGE, ImageInput, file_name, not_an_image, pixels_of, preprocess
from vitkit.predict.mask_files import class_shares, mask_image, write_mask
from vitkit.weights.load import load

BATCH = 16  # images at a time: the scores of queries take megabytes each


@dataclass(frozen=True, eq=False, repr=False)
class SegmentedImage:
    """An image's `mask` at its own size, the classes that it has and their `shares`; or an `error` instead."""

    mask: NDArray[np.uint8]  # (h, w) class numbers; (0, 0) with an error
    classes: tuple[str, ...]
    palette: Palette
    name: str | None = None  # of the file, if it was one
    error: str | None = None  # why the image could not be read
    windows: int = 1  # that a large image was cut into; 1: squashed as a whole
    probability: NDArray[np.float32] | None = None  # (h, w) of each pixel's class, where they were asked for

    @property
    def shares(self) -> dict[str, float]:
        """Return the share of pixels of each class that the mask has, the largest first."""
        self._check()
        return class_shares(self.mask, self.classes)

    def image(self) -> Image.Image:
        """Return the mask as an image of class numbers with a palette."""
        self._check()
        return mask_image(self.mask, self.palette)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the mask as PNG: class numbers, which viewers show in the palette's colours."""
        self._check()
        write_mask(Path(path), self.mask, self.palette)

    def over(self, image: ImageInput, opacity: float = 0.6) -> Image.Image:
        """Return the image that was segmented with the mask over it."""
        self._check()
        pixels = pixels_of(image)
        if pixels.shape[:2] != self.mask.shape:
            raise ConfigError(f"this image is {pixels.shape[:2]}, and the mask that of one of {self.mask.shape}")
        return Image.fromarray(draw_mask(pixels, self.mask, self.palette, opacity))

    def _check(self) -> None:
        if self.error is not None:
            raise DecodeError(f"{self.name or 'the image'}: {self.error}")

    def __repr__(self) -> str:
        if self.error is not None:
            return f"SegmentedImage({self.name!r}, error={self.error!r})"
        height, width = self.mask.shape
        classes = ", ".join(f"{name} {share:.1%}" for name, share in self.shares.items())
        return f"SegmentedImage({self.name!r}, {height} x {width}: {classes})"


class ImageSegmenter:
    """A trained segmentation model, with the same masks as `vitkit evaluate` and `vitkit predict`.

    source         a run folder, a weights file, hf:OWNER/NAME or a model
    device         "auto", "cpu", "cuda", "cuda:1" …; default: cpu, or the device of the given model
    image          another size than the model's own; positions are resized
    labels         class names, in the order of their numbers, for weights that carry none
    probabilities  whether masks come with the probability of each pixel's class
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Model,
        *,
        device: str | None = None,
        image: int | tuple[int, int] | None = None,
        labels: Sequence[str] | None = None,
        probabilities: bool = False,
    ):
        if isinstance(source, str | os.PathLike):
            model, self.device = load(source, image=image), pick_device(device or "cpu")
        else:
            model_device = next(source.parameters()).device
            self.device = model_device if device is None else pick_device(device)
            # the caller's model keeps its mode and device
            model = shared_copy(source) if model_device == self.device else copy.deepcopy(source)
        if not isinstance(model, Segmenter):
            raise WeightsError(
                f"{source if isinstance(source, str | os.PathLike) else 'the model'} is {model.kind} for whole images, "
                "and gives no masks.",
                try_="vitkit.Classifier, or a run that was trained on masks",
            )
        self.model = model.eval()
        config, metadata = model.config, model.metadata
        if labels is not None:
            if len(labels) != config.classes:
                raise ConfigError(f"{len(labels)} class names for a model of {config.classes} classes")
            metadata = model.metadata = replace(metadata, labels=tuple(labels))
        self.classes: tuple[str, ...] = metadata.labels or tuple(map(str, range(config.classes)))
        self.palette = stored_palette(metadata.provenance, config.classes)
        self.preprocess = preprocess(model)
        self.transform = self.preprocess.transform
        self.compute = ComputeMask(
            scores=exact_scores(model, self.device),
            transform=self.transform,
            trained_size=trained_size(metadata.provenance),
            to_probabilities=probabilities_of_scores(model) if probabilities else None,
        )

    @overload
    def __call__(self, images: ImageInput) -> SegmentedImage: ...  # type: ignore[overload-overlap]  # a str is one path
    @overload
    def __call__(self, images: Iterable[ImageInput]) -> list[SegmentedImage]: ...
    def __call__(self, images: ImageInput | Iterable[ImageInput]) -> SegmentedImage | list[SegmentedImage]:
        """Return the mask of one image, or a list for several; an unreadable image has an `error` instead."""
        if isinstance(images, SINGLE_IMAGE):
            return self([images])[0]
        if not isinstance(images, Iterable):
            raise not_an_image(images)
        segmented: list[SegmentedImage] = []
        batch: list[tuple[int, Tensor, tuple[int, int]]] = []
        for index, image in enumerate(images):
            name = file_name(image)
            try:
                pixels = pixels_of(image, channels=self.preprocess.channels)
            except DecodeError as error:
                segmented.append(self.segmented(name=name, error=str(error)))
                continue
            size = (pixels.shape[0], pixels.shape[1])
            segmented.append(self.segmented(name=name))
            if is_large(size, self.compute.trained_size):
                segmented[index] = self.segmented(self.compute(pixels), name=name)
            else:
                batch.append((index, self.transform(pixels), size))
            if len(batch) == BATCH:
                self._fill(batch, segmented)
        self._fill(batch, segmented)
        return segmented

    def _fill(self, batch: list[tuple[int, Tensor, tuple[int, int]]], segmented: list[SegmentedImage]) -> None:
        """Fill in the masks of a batch and empty it."""
        if batch:
            scores = self.compute.scores(torch.stack([image for _, image, _ in batch]))
            for (index, _, size), own in zip(batch, scores, strict=True):
                mask = self.compute.of_scores(own, size)
                segmented[index] = self.segmented(mask, name=segmented[index].name)
            batch.clear()

    def segmented(
        self, predicted: PredictedMask | None = None, /, *, name: str | None = None, error: str | None = None
    ) -> SegmentedImage:
        """Return a segmented image of this model's classes from a mask, or with an error instead."""
        if predicted is None:
            return SegmentedImage(np.empty((0, 0), np.uint8), self.classes, self.palette, name, error)
        return SegmentedImage(
            predicted.mask, self.classes, self.palette, name, error, predicted.windows, predicted.probability
        )
