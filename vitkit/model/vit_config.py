"""The configuration of a Vision Transformer as plain data, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from vitkit.errors import ConfigError, SizeError
from vitkit.model.conv_config import ConvConfig
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


def check_image(image: tuple[int, int]) -> None:
    for side in image:
        check_count("image", side, least=1)
