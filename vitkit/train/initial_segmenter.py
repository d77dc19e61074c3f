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
from vitkit.model.vit import VisionTransformer
from vitkit.text import counted


def initial_segmenter(model: Model, config: Fit, classes: Sequence[str]) -> tuple[Segmenter, str]:
    """Return the model with a head for these classes of pixels, and a description of the head.

    A model that segments already keeps its head, but for the layer of classes where they differ, unless the settings
    name the other head.
    """
    settings, kept = config.segment, model.metadata.labels
    if isinstance(model, Segmenter):
        if settings.head in ("auto", model.config.head):
            if kept == tuple(classes):
                return model, f"head kept: {_describe(model)}, the same classes"
            model.replace_head(len(classes))
            return model, f"{_describe(model)} kept, its classes new: {counted(len(classes), 'class', 'classes')}"
        model.backbone.metadata = model.metadata
        model = model.backbone  # the other head is new
    if not isinstance(model, VisionTransformer):
        raise ConfigError(
            f"segmentation needs a model with patches, and this is {model.kind}", try_="a ViT, such as --model B/16"
        )
    torch.manual_seed(config.seed)
    segmenter = segmenter_from(
        model,
        head="linear" if settings.head == "auto" else settings.head,
        classes=len(classes),
        queries=settings.queries,
        query_blocks=settings.query_blocks,
    )
    return segmenter, f"{_describe(segmenter)} for {counted(len(classes), 'class', 'classes')}, new"


def _describe(segmenter: Segmenter) -> str:
    config = segmenter.config
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
