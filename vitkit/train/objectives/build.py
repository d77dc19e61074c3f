"""Build the objective that the settings of a run name."""

from collections.abc import Callable
from typing import Any

from vitkit.config.objectives import OBJECTIVES
from vitkit.config.schema import Fit
from vitkit.data.sources.dataset import Data, Split
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.train.objectives.base import Objective
from vitkit.train.objectives.labels import Labels, class_weights
from vitkit.train.objectives.masked_patch import MaskedPatch
from vitkit.train.objectives.pixels import LabelsAndPixels, MaskedPixel, NextPixel
from vitkit.train.objectives.segmentation import build_segmentation


def _labels(model: Model, config: Fit, split: Split, data: Data) -> Objective:
    weights = class_weights(split.labels, len(data.classes), config.balance)
    own: dict[str, Any] = {"multilabel": data.multilabel, "smoothing": config.label_smoothing, "weights": weights}
    return LabelsAndPixels(model, generative=config.generative, **own) if config.generative else Labels(model, **own)


BUILDERS: dict[str, Callable[[Model, Fit, Split, Data], Objective]] = {
    "labels": _labels,
    "masked-patch": lambda model, config, split, data: MaskedPatch(model, config.masked),
    "next-pixel": lambda model, config, split, data: NextPixel(model),
    "segment": lambda model, config, split, data: build_segmentation(model),
    "masked-pixel": lambda model, config, split, data: MaskedPixel(model, config.masked),
}


def build_objective(model: Model, config: Fit, split: Split, data: Data) -> Objective:
    """Return the objective, whose own weights are drawn from torch's generator; `split` is what it trains on."""
    if not config.labelled and (config.augment.mixup or config.augment.cutmix):
        raise ConfigError(
            f"{OBJECTIVES[config.objective].title} does not go with mixup and cutmix",
            try_="--set augment.mixup=0 augment.cutmix=0",
        )
    return BUILDERS[config.objective](model, config, split, data)
