"""The segmenter that a run starts from: a ViT with a head for masks, and what its record says about the data."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from vitkit.config.schema import Fit
from vitkit.data.image_sizes import measure_size
from vitkit.data.sources.dataset import Data, Split
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.model.segmenter import Segmenter, segmenter_from
from vitkit.model.segmenter_config import SegmenterConfig
from vitkit.model.vit import VisionTransformer
from vitkit.text import counted


def initial_segmenter(model: Model, config: Fit, classes: Sequence[str]) -> tuple[Segmenter, str]:
    """Return the model with a head for these classes of pixels, and a description of the head.

    A model that segments already keeps its head, but for the layer of classes where they differ, unless the settings
    name the other head or other numbers of its queries and their blocks.
    """
    head, kept = config.segment.head, model.metadata.labels
    asked = {"queries": config.segment.queries, "query_blocks": config.segment.query_blocks}
    numbers = {name: number for name, number in asked.items() if number is not None}
    if isinstance(model, Segmenter):
        before = model.config
        own = {name: getattr(before, name) for name in asked}
        if head in ("auto", before.head) and (before.head == "linear" or {**own, **numbers} == own):
            description = describe_segmentation_head(before)
            if kept == tuple(classes):
                return model, f"head kept: {description}, the same classes"
            model.replace_head(len(classes))
            return model, f"{description} kept, its classes new: {counted(len(classes), 'class', 'classes')}"
        model.backbone.metadata = model.metadata
        model, numbers = model.backbone, {**own, **numbers}  # the head is new
    if not isinstance(model, VisionTransformer):
        raise ConfigError(
            f"segmentation needs a model with patches, and this is {model.kind}", try_="a ViT, such as --model B/16"
        )
    torch.manual_seed(config.seed)
    segmenter = segmenter_from(model, head="linear" if head == "auto" else head, classes=len(classes), **numbers)
    description = describe_segmentation_head(segmenter.config)
    return segmenter, f"{description} for {counted(len(classes), 'class', 'classes')}, new"


def describe_segmentation_head(config: SegmenterConfig) -> str:
    """Return what gives every pixel a class, in a few words."""
    if config.head == "linear":
        return "a linear head on the patches"
    blocks = "block" if config.query_blocks == 1 else f"{config.query_blocks} blocks"
    return f"{counted(config.queries, 'mask query', 'mask queries')} in the last {blocks}"


def record_of_masks(data: Data, train: Split) -> Mapping[str, Any]:
    """Return what belongs to the weights of a segmenter: the colours of classes, and the size of the training images.

    An image much larger than those is segmented in windows of that size (`vitkit.compute.windows`).
    """
    measured = measure_size(train)
    size: list[int] | None = None if measured is None else [measured.height, measured.width]
    task: Literal["segment"] = "segment"
    return {
        "task": task,
        "palette": [list(colour) for colour in data.palette],
        **({} if size is None else {"trained_size": size}),
    }
