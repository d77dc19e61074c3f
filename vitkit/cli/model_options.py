"""The options of a model that `cost` and `bench` share: names with options, image sizes, and `--set` as of `fit`."""

from typing import Annotated

import tyro
from tyro.conf import Positional, arg

from vitkit.cli.options import image_size, option
from vitkit.errors import ConfigError

Models = Annotated[
    Positional[tuple[str, ...]],
    arg(
        metavar="MODEL…",
        help="names such as B/16, R50+B/16 or R50x1; with options of their own: Ti/8,axial=true,pool=gap",
        help_behavior_hint="",
    ),
]
ImageSizes = Annotated[
    tuple[tuple[int, ...], ...],
    tyro.conf.UseAppendAction,
    option(
        "image side, or height and width; once more for each further size; default: 224, or in an iGPT's name", "PX"
    ),
]
ModelSettings = Annotated[
    tuple[tuple[str, ...], ...],
    tyro.conf.UseAppendAction,
    arg(
        name="set",
        help="the model's settings, as of `vitkit fit`: options.axial=true options.depth=8 options.positions=2d "
        "channels=1; for all models",
        metavar="KEY=VALUE…",
        help_behavior_hint="",
    ),
]


def image_sizes(sizes: tuple[tuple[int, ...], ...]) -> list[tuple[int, int]]:
    """Return each --image as (height, width)."""
    return [image_size(sides) for sides in sizes]


def require_models(verb: str, models: tuple[str, ...]) -> None:
    if not models:
        raise ConfigError("no model named", try_=f"vitkit {verb} B/16")
