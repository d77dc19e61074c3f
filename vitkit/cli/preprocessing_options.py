"""The options that override the preprocessing of a model, for verbs that take images; --image is its size."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from vitkit.cli.options import option
from vitkit.data.preprocessing import Interpolation, Preprocessing, Resize

if TYPE_CHECKING:
    from vitkit.model.build import Model


@dataclass(frozen=True, kw_only=True)
class PreprocessingOptions:
    """Values instead of those that belong to the weights; None keeps those."""

    resize: Annotated[
        Resize | None,
        option("cut out the centre, ignore the shape, or pad; default: the weights' own", "crop|squash|letterbox"),
    ] = None
    crop: Annotated[
        float | None,
        option("share of the resized side that is cut out, such as 0.875; default: the weights' own", "SHARE"),
    ] = None
    interpolation: Annotated[
        Interpolation | None, option("filter of the resize; default: the weights' own", "bilinear|bicubic")
    ] = None
    mean: Annotated[
        tuple[float, ...] | None,
        option("subtracted from values on 0 to 1; one number, or one a channel; default: the weights' own", "N"),
    ] = None
    std: Annotated[
        tuple[float, ...] | None, option("that they are divided by then; default: the weights' own", "N")
    ] = None

    def check(self) -> None:
        """Raise an error for values that no model takes, before anything is loaded."""
        channels = max(len(self.mean or ()), len(self.std or ()), 1)
        half = (0.5,) * channels
        Preprocessing(mean=half, std=half, rounding="timm").override(**asdict(self), channels=channels)

    def apply(self, model: Model) -> None:
        """Override the preprocessing of a model."""
        preprocessing = model.metadata.preprocessing.override(**asdict(self), channels=model.config.channels)
        model.metadata = replace(model.metadata, preprocessing=preprocessing)


NO_OVERRIDES = PreprocessingOptions()
Overrides = Annotated[PreprocessingOptions, arg(name="", help="")]  # name="": options without a prefix
