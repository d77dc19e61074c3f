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


ModelConfig = ViTConfig | ResNetConfig | IGPTConfig
TokenConfig = ViTConfig | IGPTConfig  # of models that read an image as a grid of tokens, with a position each
KINDS: dict[str, type[ModelConfig]] = {"vit": ViTConfig, "resnet": ResNetConfig, "igpt": IGPTConfig}  # in a record


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
    """Return the config of the same model without logits."""
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
    # an option that this version does not know would change the model: refused, where other records may have more keys
    check_options("this model record", known, options)
    for name in ("stem", "body"):
        if isinstance(options.get(name), Mapping):
            check_options(f"{name} of this model record", ConvConfig, options[name])
            if isinstance(attention := options[name].get("attention"), Mapping):
                check_options(f"the attention in {name} of this model record", SpatialAttention, attention)
    if "image" in options:
        options["image"] = parse_size(options["image"])
    config: ModelConfig = conform(options, known, "this model record", error=ConfigError)
    return config
