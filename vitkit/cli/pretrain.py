"""The verb `pretrain`: train a model to fine-tune later."""

from typing import Annotated, Literal

from vitkit.cli.options import option
from vitkit.cli.training_options import Data, Model, SharedOptions, start_training


def pretrain(
    data: Data = None,
    *,
    objective: Annotated[
        Literal["labels", "masked-patch", "next-pixel", "masked-pixel"] | None,
        option(
            "learn from labels, or from images alone; default: the recipe's, masked-patch without a recipe",
            "labels|masked-patch|next-pixel|masked-pixel",
        ),
    ] = None,
    model: Model = None,
    weights: Annotated[str, option("where to start; default: from scratch", "ti16|hf:OWNER/NAME|PATH")] = "",
    options: SharedOptions,
) -> None:
    """Train a model to fine-tune later: from labels, or from images alone.

    From labels, a ViT has a head with a tanh layer (3.1); fine-tuning drops it.
    --set options.representation=false   without that layer
    --set masked.target=4x4              colour, 4x4 or pixels (B.1.2)
    --set masked.rate=0.15               share of patches; default: 0.5
    --objective next-pixel               iGPT; masked-pixel: as BERT

    vitkit pretrain photos/ --out runs/pre

    then: vitkit fit labelled/ --weights runs/pre
    """
    start_training(options, pretraining=True, data=data, objective=objective, model=model, weights=weights)
