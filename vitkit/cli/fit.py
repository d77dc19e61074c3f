"""The verb `fit`: train a classifier, or a model that segments images, by the data."""

from typing import Annotated, Literal

from vitkit.cli.options import option
from vitkit.cli.training_options import Data, Model, SharedOptions, start_training


def fit(
    data: Data = None,
    *,
    model: Model = None,
    weights: Annotated[
        str,
        option(
            "where to start; default: the model's public weights (of Ti/16, ti16 inside vitkit); none: from scratch",
            "ti16|hf:OWNER/NAME|PATH|none",
        ),
    ] = "",
    task: Annotated[
        Literal["classify", "segment"] | None,
        option("classify images, or segment them by their masks; default: segment where there are masks", "TASK"),
    ] = None,
    options: SharedOptions,
) -> None:
    """Train a classifier on your images, score it on held-out ones and write a report.

    Images with masks (PNG, COCO JSON, YOLO polygons) train it to segment them.

    vitkit fit photos/

    vitkit fit photos/ --model B/16 --image 384 --lr auto --out runs/photos

    vitkit fit photos/ --set subset=0.1    a tenth of the training images

    torchrun --nproc-per-node=8 -m vitkit fit shards/ --recipe imagenet_transfer_384
    """
    start_training(options, data=data, model=model, weights=weights, task=task)
