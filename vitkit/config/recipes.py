"""The recipes by name: functions that return the settings of a run, and the choice among them by the size of the data.

pretraining_recipes.py and transfer_recipes.py have the paper's rows, size_recipes.py those for ordinary data,
segmentation_recipes.py those for images with masks, other_paper_recipes.py those of papers beside it, and
related_recipes.py that of the comparison with other systems.
"""

import textwrap
from collections.abc import Callable
from dataclasses import replace

from vitkit.config import (
    other_paper_recipes,
    pretraining_recipes,
    related_recipes,
    segmentation_recipes,
    size_recipes,
    transfer_recipes,
)
from vitkit.config.objectives import OBJECTIVES
from vitkit.config.schema import Fit
from vitkit.data.image_sizes import DataSize
from vitkit.errors import ConfigError, did_you_mean

# every public function of these modules that returns settings
RECIPES: dict[str, Callable[..., Fit]] = {
    name: value
    for module in (
        pretraining_recipes,
        transfer_recipes,
        size_recipes,
        segmentation_recipes,
        other_paper_recipes,
        related_recipes,
    )
    for name, value in vars(module).items()
    if not name.startswith("_")
    and getattr(value, "__module__", "") == module.__name__
    and getattr(value, "__annotations__", {}).get("return") is Fit
}
BY_DATA = ("bit_hyperrule",)  # recipes that also ask for the size of the data

# old names: the recipes that took their place, of which the first with a row for the model is meant, and why
RENAMED = {
    "imagenet_transfer": (
        ("imagenet_transfer_384",),
        "without averaging, as Table 5; Table 2's rows average: imagenet_transfer_512 and imagenet_transfer_518",
    ),
    "jft_pretrain": (("jft_pretrain_14ep", "jft_pretrain_7ep"), "Table 3 has rows of 7 and of 14 epochs"),
    "imagenet21k_pretrain": (("imagenet21k_pretrain_90ep",), "Table 3 has rows of 30 and of 90 epochs"),
}


def recipe(name: str, model: str | None = None, data: DataSize | None = None) -> Fit:
    """Return the settings of the recipe by that name, or by one that it had earlier."""
    if name in RENAMED:
        names = RENAMED[name][0]
        fitting = [new for new in names if model is None or has_row(new, model)]
        return recipe(fitting[0] if fitting and model else names[-1], model, data)
    if name not in RECIPES:
        raise ConfigError(
            f"there is no recipe {name!r}{did_you_mean(name, RECIPES)}", recipes=textwrap.wrap(", ".join(RECIPES), 100)
        )
    arguments = {"model": model, "data": data if name in BY_DATA else None}
    return replace(RECIPES[name](**{key: value for key, value in arguments.items() if value}), recipe=name)


def describe_renamed(name: str) -> str:
    names, reason = RENAMED[name]
    return f"{name} is now {' or '.join(names)}: {reason}"


def has_row(name: str, model: str) -> bool:
    """Return whether the recipe is for that model; those of Table 3 are for the models of its rows."""
    try:
        return bool(RECIPES[name](model))
    except ConfigError:
        return False


def pick_recipe(images: int, *, objective: str, from_scratch: bool, label_free: str | None = None) -> tuple[str, str]:
    """Return the name of the recipe for this many images, and the reason for it.

    `label_free` names the family of weights that were trained without class labels.
    """
    if name := OBJECTIVES[objective].recipe:
        return name, f"{images:,} images without labels"
    size = "small" if images < 2_000 else "medium" if images < 20_000 else "large"
    if objective == "segment":
        return f"{size}_segmentation", f"{images:,} images with masks"
    if from_scratch:
        name = "small_scratch" if images < 20_000 else "medium_scratch" if images < 500_000 else "large_scratch"
        return name, f"{images:,} images, from scratch"
    if label_free:
        return (
            f"{size}_layerwise_transfer",
            f"{images:,} images, from weights trained without class labels ({label_free})",
        )
    return f"{size}_transfer", f"{images:,} images, from pre-trained weights"
