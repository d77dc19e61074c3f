"""The configuration of a model as plain data: enough to build it, to count its cost and to write it to disk.

This file does not import torch, so that `vitkit cost` and error messages stay instant.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, SupportsIndex, get_args

from vitkit.errors import ConfigError, SizeError, did_you_mean
from vitkit.stored_json import conform

Positions = Literal["none", "1d", "2d", "relative", "sincos", "sincos1d"]
# what loading does with learned positions: interpolate in 2-D (section 3.2), stretch in 1-D, keep, or re-initialise
PositionTransfer = Literal["interpolate", "stretch", "keep", "fresh"]
Injection = Literal["stem", "every", "shared"]
Pool = Literal["token", "gap", "gap-norm", "attention"]
Norm = Literal["pre", "post"]
Gelu = Literal["tanh", "exact"]
EpsilonOn = Literal["std", "variance"]

GROUPS = 32  # in every group normalisation
# Far above every model that was ever built: a size from a damaged file shall not take all memory, nor overflow a shape.
MOST = {"depth": 4096, "patch": 2**13, "channels": 2**12, "classes": 2**24, "image": 2**20}
MOST_WIDTH = 2**20  # of width, mlp, heads and representation
MOST_STAGES = 8


@dataclass(frozen=True, kw_only=True)
class ConvConfig:
    """A group-normalised, weight-standardised ResNet without its head: a hybrid's stem or a BiT classifier's body."""

    layers: tuple[int, ...]  # bottleneck units per stage; () is the root alone
    width: int = 64  # channels of the root; stage s puts out 4 · width · 2^s
    preactivation: bool = False  # BiT is pre-activation (v2), the hybrid's stem is post-activation
    # Google's hybrid divides kernels by (std + 1e-5), BiT and timm by sqrt(variance + a smaller epsilon).
    standardise_eps: float = 1e-5
    standardise_on: EpsilonOn = "std"
    norm_eps: float = 1e-6

    @classmethod
    def bit(cls, layers: tuple[int, ...], width: int) -> ConvConfig:
        """Return the body of a BiT ResNet, as in big_transfer."""
        return cls(
            layers=layers,
            width=width,
            preactivation=True,
            standardise_eps=1e-10,
            standardise_on="variance",
            norm_eps=1e-5,
        )

    def __post_init__(self) -> None:
        units_fit = all(0 < units <= MOST["depth"] for units in self.layers) and len(self.layers) <= MOST_STAGES
        if not 0 < self.width <= MOST_WIDTH >> MOST_STAGES or self.width % GROUPS or not units_fit:
            raise ConfigError(
                f"a ResNet of width {self.width} and {self.layers} units per stage cannot be built",
                needed=f"a width that {GROUPS} normalisation groups can share, a unit in each stage",
            )

    @property
    def stride(self) -> int:
        return 4 * 2 ** max(len(self.layers) - 1, 0)

    @property
    def channels_out(self) -> int:
        return 4 * self.width * 2 ** (len(self.layers) - 1) if self.layers else self.width


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
    positions: Positions = "1d"
    inject: Injection = "stem"
    pool: Pool = "token"
    class_token: bool = True
    representation: int | None = None  # width of the tanh layer in front of the logits (pre-training)
    norm: Norm = "pre"
    axial: bool = False
    gelu: Gelu = "tanh"
    eps: float = 1e-6
    dropout: float = 0.0
    stochastic_depth: float = 0.0

    def __post_init__(self) -> None:
        self._check_values()
        self._check_combinations()
        check_image(self.image)
        height, width = self.image
        if height % self.stride or width % self.stride or min(height, width) < self.stride:
            fits = [max(side // self.stride, 1) * self.stride for side in self.image]
            raise SizeError(
                f"a {height} x {width} image cannot be cut into {self.stride}-pixel patches; "
                f"use {fits[0]} x {fits[1]} or another patch size"
            )

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
    def tokens(self) -> int:
        return self.patches + self.class_token

    @property
    def embedded_channels(self) -> int:
        """The channels that the patch embedding takes: those of the image, or of the stem's feature map."""
        return self.stem.channels_out if self.stem else self.channels

    def _check_values(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name}={getattr(self, name)!r} is not known", choose_from=", ".join(choices))
        for name in ("depth", "width", "mlp", "heads", "patch", "channels"):
            check_count(name, getattr(self, name), least=1)
        check_count("classes", self.classes, least=0)
        if self.representation is not None:
            check_count("representation", self.representation, least=1)
        for name in ("class_token", "axial"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}={getattr(self, name)!r} must be true or false")
        for name in ("dropout", "stochastic_depth"):
            if not (_is_number(getattr(self, name)) and 0 <= getattr(self, name) < 1):
                raise ConfigError(f"{name}={getattr(self, name)!r} is a probability: 0 or more, under 1")
        if not (_is_number(self.eps) and 0 < self.eps < math.inf):
            raise ConfigError(f"eps={self.eps!r} must be a number above 0")
        if not (self.stem is None or isinstance(self.stem, ConvConfig)):
            raise ConfigError(f"stem={self.stem!r} should be a ConvConfig", try_="a hybrid's name, such as R50+B/16")
        if self.width % self.heads:
            raise ConfigError(
                f"a width of {self.width} cannot be shared by {self.heads} heads; heads must divide the width"
            )

    def _check_combinations(self) -> None:
        if self.pool == "token" and not self.class_token:
            raise ConfigError(
                "pool='token' reads the class token, which class_token=False leaves out",
                try_="pool='gap', the paper's alternative (D.3)",
            )
        if self.positions == "relative" and self.inject == "stem":
            raise ConfigError(
                "relative positions live inside attention, there is nothing to add at the stem",
                try_="inject='every' (its own offsets in each layer) or 'shared'",
            )
        if self.positions == "none" and self.inject != "stem":
            raise ConfigError(f"inject={self.inject!r} has nothing to inject with positions='none'")
        if self.positions in ("sincos", "sincos1d") and self.inject == "every":
            raise ConfigError("sin-cos tables are fixed, so each layer's own would be the same", try_="inject='shared'")
        if self.positions == "2d" and self.width % 2:
            raise ConfigError(f"2-D positions give half the width to rows and half to columns; {self.width} is odd")
        if self.positions == "sincos1d" and self.width % 2:
            raise ConfigError(f"1-D sin-cos positions need an even width; {self.width} is odd")
        if self.positions == "sincos" and self.width % 4:
            raise ConfigError(f"sin-cos positions need a width divisible by 4; {self.width} is not")
        if self.axial and self.class_token:
            raise ConfigError(
                "axial attention runs along rows and columns of patches, a class token is in neither",
                try_="pool='gap', class_token=False",
            )
        if self.axial and self.positions == "relative":
            raise ConfigError("axial attention with relative positions is not built", try_="positions='1d'")
        if self.norm == "post" and self.pool == "gap-norm":
            raise ConfigError(
                "post-norm blocks end normalised; pool='gap-norm' would normalise twice", try_="pool='gap'"
            )


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


ModelConfig = ViTConfig | ResNetConfig

_KINDS: dict[str, Any] = {"positions": Positions, "inject": Injection, "pool": Pool, "norm": Norm, "gelu": Gelu}
_CHOICES = {name: get_args(kind) for name, kind in _KINDS.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_count(name: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}={value!r} must be a whole number, {least} or more")
    if value > (most := MOST.get(name, MOST_WIDTH)):
        raise ConfigError(f"{name}={value} is more than a model can have, {most:,}")


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


def check_options(what: str, known: type[ModelConfig | ConvConfig], options: Mapping[str, Any]) -> None:
    """Raise an error for an option that the model does not have, with the nearest name that it has."""
    names = [field.name for field in fields(known)]
    for option in options:
        if option not in names:
            raise ConfigError(f"{what} has no option {option!r}{did_you_mean(option, names)}", options=", ".join(names))


def to_dict(config: ModelConfig) -> dict[str, Any]:
    kind = "vit" if isinstance(config, ViTConfig) else "resnet"
    return {"kind": kind, **asdict(config)}


def from_dict(record: Mapping[str, Any]) -> ModelConfig:
    """Return the config that `to_dict` described, after a trip through JSON."""
    options: dict[str, Any] = conform(record, dict[str, Any], "this model record", error=ConfigError)
    kind = options.pop("kind", None)
    if kind not in ("vit", "resnet"):
        raise ConfigError(f"a model record of kind {kind!r}", expected="vit or resnet")
    known: type[ModelConfig] = ViTConfig if kind == "vit" else ResNetConfig
    # an option that this version does not know would change the model: refused, where other records may have more keys
    check_options("this model record", known, options)
    for name in ("stem", "body"):
        if isinstance(options.get(name), Mapping):
            check_options(f"{name} of this model record", ConvConfig, options[name])
    if "image" in options:
        options["image"] = parse_size(options["image"])
    config: ModelConfig = conform(options, known, "this model record", error=ConfigError)
    return config
