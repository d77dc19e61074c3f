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
from vitkit.model.options import (
    Distillation,
    Gelu,
    Injection,
    Norm,
    Pool,
    Positions,
    Rotary,
    RotaryLayout,
    check_combinations,
    check_count,
    check_values,
)
from vitkit.model.spatial_attention import SpatialAttention
from vitkit.stored_json import conform


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """A Vision Transformer, pure or hybrid. Field names are the options of `vitkit.create`."""

    depth: int
    width: int
    mlp: int
    heads: int
    patch: int  # side of a patch; in a hybrid, on the stem's feature map
    stem: ConvConfig | None = None
    image: tuple[int, int] = (224, 224)  # height, width
    channels: int = 3
    classes: int = 1000  # 0: no head, the model returns the representation
    patch_bias: bool = True
    positions: Positions = "1d"
    inject: Injection = "stem"
    rotary: Rotary = "none"  # rotary positions inside attention, by these coordinates; beside or without the others
    rotary_base: float = 100.0  # angles fall from 1 to almost 1 / base of the coordinate
    rotary_layout: RotaryLayout = "half"
    pool: Pool = "token"
    seeds: int = 1  # learned queries of pool="seeds"
    class_token: bool = True
    class_position: bool = True  # whether class and distillation token have positions as the patches have
    distillation: Distillation = "none"
    registers: int = 0  # tokens without a position, between the class token and the patches
    representation: int | None = None  # width of the tanh layer in front of the logits (pre-training)
    projection: int | None = None  # width of CLIP's output projection, a linear layer without bias after pooling
    normalise: bool = False  # whether the logits see the representation at length 1: cosine similarities (CLIP)
    norm: Norm = "pre"
    ln_pre: bool = False  # CLIP's LayerNorm of the tokens before the first block
    axial: bool = False
    content: bool = True  # False: attention by positions alone (Cordonnier et al.)
    induced: int = 0  # inducing points of each layer (Set Transformer); 0: all tokens attend to all
    query_bias: bool = True
    key_bias: bool = True
    value_bias: bool = True
    swiglu: bool = False
    gelu: Gelu = "tanh"
    layer_scale: float | None = None  # initial value
    eps: float = 1e-6
    dropout: float = 0.0
    stochastic_depth: float = 0.0

    def __post_init__(self) -> None:
        check_values(self)
        check_combinations(self)
        if not (self.stem is None or isinstance(self.stem, ConvConfig)):
            raise ConfigError(f"stem={self.stem!r} should be a ConvConfig", try_="a hybrid's name, such as R50+B/16")
        if self.stem and self.stem.attention:
            raise ConfigError("attention in the stem of a hybrid is not built", try_="a ResNet's name, such as BoT50")
        check_image(self.image)
        height, width = self.image
        if height % self.stride or width % self.stride or min(height, width) < self.stride:
            fits = [max(side // self.stride, 1) * self.stride for side in self.image]
            raise SizeError(
                f"a {height} x {width} image cannot be cut into {self.stride}-pixel patches; "
                f"use {fits[0]} x {fits[1]} or another patch size"
            )

    @property
    def layers(self) -> int:
        """The number of repeated layers, without those of a stem."""
        return self.depth

    @property
    def stride(self) -> int:
        """The image pixels per token, along a side."""
        return self.patch * (self.stem.stride if self.stem else 1)

    @property
    def grid(self) -> tuple[int, int]:
        return self.image[0] // self.stride, self.image[1] // self.stride

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def special_tokens(self) -> int:
        """The number of tokens in front of the patches: class token, distillation token, registers."""
        return self.class_token + (self.distillation != "none") + self.registers

    @property
    def input_delay(self) -> int:
        """0: the token of a patch reads that patch, and no token before it does."""
        return 0

    @property
    def special_positions(self) -> int:
        """The number of special tokens that have positions; registers never have."""
        return self.class_token + (self.distillation != "none") if self.class_position else 0

    @property
    def tokens(self) -> int:
        return self.special_tokens + self.patches

    @property
    def pooled_width(self) -> int:
        """The width of the pooled vector: a multiple of the model's where it is several vectors side by side."""
        return self.width * (2 if self.pool == "token-gap" or self.distillation != "none" else self.seeds)

    @property
    def embedded_channels(self) -> int:
        """The channels that the patch embedding takes: those of the image, or of the stem's feature map."""
        return self.stem.channels_out if self.stem else self.channels


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


def check_image(image: tuple[int, int]) -> None:
    for side in image:
        check_count("image", side, least=1)


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
