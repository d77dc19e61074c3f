"""The objectives of training as plain data: what each reads of the settings, and what it asks of a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """An objective as the settings of a run need to know it."""

    title: str  # "masked patch prediction": as reports name it
    target: Literal["classes", "masks", "none"]  # what of the data it is trained on, beside the images
    recipe: str = ""  # for data of any size, where no recipe is named; "": by the number of images
    masked: tuple[str, ...] = ()  # the settings of the table `masked` that it reads
    options: Mapping[str, Any] = field(default_factory=dict)  # of the model, unless the user sets them
    metric: str = "top1"  # of a validation, which learning rates are chosen by
    metric_title: str = "top-1"


OBJECTIVES = {
    "labels": ObjectiveSettings(title="supervised training", target="classes"),
    "masked-patch": ObjectiveSettings(
        title="masked patch prediction", target="none", recipe="small_masked_patch", masked=("rate", "target")
    ),
    "next-pixel": ObjectiveSettings(title="next-pixel prediction", target="none", recipe="small_next_pixel"),
    "masked-pixel": ObjectiveSettings(
        title="masked-pixel prediction",
        target="none",
        recipe="small_masked_pixel",
        masked=("rate",),
        options={"causal": False},
    ),
    "segment": ObjectiveSettings(title="segmentation", target="masks", metric="mean_iou", metric_title="mean IoU"),
}
