"""Batches on the device → pixels and targets of a step, augmented: of labels, of masks, of images alone."""

from collections.abc import Callable
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from vitkit.config.schema import Fit
from vitkit.data.augment import Augment, augment, erase, mix
from vitkit.data.batch import Batch
from vitkit.data.mask_augment import MaskAugment, augment_with_masks
from vitkit.data.resize import Size
from vitkit.model.config import ModelConfig
from vitkit.train.step import MicroBatch

MakeInputs = Callable[[int, Batch], MicroBatch]  # the number of the micro-batch, its batch on the device


class Inputs(Protocol):
    """The inputs of one kind of objective."""

    def __call__(self, number: int, batch: Batch) -> MicroBatch: ...

    def describe(self) -> list[str]:
        """Return how images are augmented on the device, an item for each augmentation."""
        ...


class LabelInputs:
    """Images augmented and mixed, with one-hot or multi-label targets as floats; without labels, images alone."""

    def __init__(self, config: Fit, classes: int, rank: int):
        self.seed, self.rank = config.seed, rank
        self.one_hot_classes = classes if config.labelled else None
        settings = config.augment
        self.augment = Augment(
            randaugment=settings.randaugment, erase=settings.erase, mixup=settings.mixup, cutmix=settings.cutmix
        )

    def __call__(self, number: int, batch: Batch) -> MicroBatch:
        pixels = augment(batch.images, batch.indices, self.augment, seed=self.seed, epoch=batch.epochs.numpy())
        targets = self._targets(batch.targets(batch.images.device))
        if targets.ndim == 2:
            pixels, targets = mix(pixels, targets, self.augment, seed=self.seed, step=number, rank=self.rank)
        return pixels, targets

    def describe(self) -> list[str]:
        settings = self.augment
        magnitudes = settings.randaugment
        items = [f"RandAugment ({magnitudes[0]}, {magnitudes[1]:g})"] if magnitudes else []
        shares = {"erase": settings.erase, "mixup": settings.mixup, "cutmix": settings.cutmix}
        return items + [f"{name} {share:g}" for name, share in shares.items() if share]

    def _targets(self, labels: Tensor) -> Tensor:
        if self.one_hot_classes is None or labels.ndim == 2:
            return labels
        return F.one_hot(labels, self.one_hot_classes).float()


class MaskInputs:
    """Images and their masks, scaled, cropped and flipped together to the size of the model's input."""

    def __init__(self, config: Fit, size: Size):
        self.seed, self.size, self.erased = config.seed, size, config.augment.erase
        settings = config.augment
        self.augment = MaskAugment(
            scale=settings.scale, aspect=settings.aspect, flip=settings.flip, colour=settings.colour
        )

    def __call__(self, number: int, batch: Batch) -> MicroBatch:
        epochs = batch.epochs.numpy()
        pixels, masks = augment_with_masks(
            batch.images, batch.indices, self.augment, self.size, seed=self.seed, epoch=epochs
        )
        if self.erased:
            pixels = erase(pixels, batch.indices.numpy(), self.erased, seed=self.seed, epoch=epochs)
        return pixels, masks

    def describe(self) -> list[str]:
        (smallest, largest), (low, high) = self.augment.scale, self.augment.aspect
        return [
            f"drawn at {smallest:g} to {largest:g} times the sides of the model's input",
            f"stretched by {low:.2g} to {high:.2g}",
            *["random horizontal flip of half of the images"] * self.augment.flip,
            *[f"colour jitter {self.augment.colour:g}"] * bool(self.augment.colour),
            *[f"erase {self.erased:g}"] * bool(self.erased),
        ]


def build_inputs(config: Fit, model: ModelConfig, rank: int) -> Inputs:
    """Return what makes the inputs that the objective of a run is trained on."""
    if config.segments:
        return MaskInputs(config, model.image)
    return LabelInputs(config, model.classes, rank)
