"""The configuration of a model as plain data: enough to build it, to count its cost and to write it to disk.

This file does not import torch, so that `vitkit cost` and error messages stay instant.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, SupportsIndex

from vitkit.errors import ConfigError, SizeError, did_you_mean
from vitkit.model.conv_config import ConvConfig
from vitkit.model.igpt_config import IGPTConfig
from vitkit.model.options import check_count
from vitkit.model.segmenter_config import SegmenterConfig
from vitkit.model.spatial_attention import SpatialAttention
from vitkit.model.vit_config import ViTConfig as ViTConfig  # configs of all kinds can be imported from here
from vitkit.model.vit_config import check_image
from vitkit.stored_json import conform


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """A BiT ResNet classifier. It is fully convolutional: `image` is what it is meant for, not what it demands."""

    body: ConvConfig
    image: tuple[int, int] = (224, 224)
    channels: int = 3
    classes: int = 1000

    def __post_init__(self) -> None:
        check_image(self.image)
        check_count("channels", self.channels, least=1)
        check_count("classes", self.classes, least=0)
        if not isinstance(self.body, ConvConfig):
            raise ConfigError(f"body={self.body!r} should be a ConvConfig", try_="a ResNet's name, such as R50x1")

    @property
    def layers(self) -> int:
        return sum(self.body.layers)


ModelConfig = ViTConfig | ResNetConfig | IGPTConfig | SegmenterConfig
# of models that read an image as a grid of tokens, with a position each
TokenConfig = ViTConfig | IGPTConfig | SegmenterConfig
KINDS: dict[str, type[ModelConfig]] = {  # in a record
    "vit": ViTConfig,
    "resnet": ResNetConfig,
    "igpt": IGPTConfig,
    "segmenter": SegmenterConfig,
}


def parse_size(image: object) -> tuple[int, int]:
    """Return (height, width) from a side or a pair."""
    try:
        sides: Any = (image, image) if isinstance(image, SupportsIndex) else image
        height, width = sides
        size = operator.index(height), operator.index(width)
    except (TypeError, ValueError):
        raise SizeError(f"image={image!r} is no size", expected="a side, 224, or (height, width)") from None
    if min(size) < 1:
        raise SizeError(f"a {size[0]} x {size[1]} image is empty")
    return size


def check_options(
    what: str, known: type[ModelConfig | ConvConfig | SpatialAttention], options: Mapping[str, Any]
) -> None:
    """Raise an error for an option that the model does not have, with the nearest name that it has."""
    names = [field.name for field in fields(known)]
    for option in options:
        if option not in names:
            raise ConfigError(f"{what} has no option {option!r}{did_you_mean(option, names)}", options=", ".join(names))


def without_head(config: ModelConfig) -> ModelConfig:
    """Return the config of the same model without logits; a segmenter's is that of its backbone."""
    if isinstance(config, SegmenterConfig):
        return config.backbone
    return replace(config, classes=0, normalise=False) if isinstance(config, ViTConfig) else replace(config, classes=0)


def to_dict(config: ModelConfig) -> dict[str, Any]:
    kind = next(name for name, known in KINDS.items() if isinstance(config, known))
    return {"kind": kind, **asdict(config)}


def from_dict(record: Mapping[str, Any]) -> ModelConfig:
    """Return the config that `to_dict` described, after a trip through JSON."""
    options: dict[str, Any] = conform(record, dict[str, Any], "this model record", error=ConfigError)
    kind = options.pop("kind", None)
    if kind not in KINDS:
        raise ConfigError(f"a model record of kind {kind!r}", expected=" or ".join(KINDS))
    known = KINDS[kind]
    checked = _check_names("this model record", known, options)
    config: ModelConfig = conform(checked, known, "this model record", error=ConfigError)
    return config


def _check_names(what: str, known: type[ModelConfig], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a config, nested ones too, with sides of an image as a tuple; refuse an unknown one.

    It would change the model, where other records may have more keys.
    """
    checked = dict(options)
    check_options(what, known, checked)
    for name in ("stem", "body"):
        if isinstance(checked.get(name), Mapping):
            check_options(f"{name} of {what}", ConvConfig, checked[name])
            if isinstance(attention := checked[name].get("attention"), Mapping):
                check_options(f"the attention in {name} of {what}", SpatialAttention, attention)
    if isinstance(checked.get("backbone"), Mapping):
        checked["backbone"] = _check_names(f"the backbone of {what}", ViTConfig, checked["backbone"])
    if "image" in checked:
        checked["image"] = parse_size(checked["image"])
    return checked
