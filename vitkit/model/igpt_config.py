"""The configuration of an iGPT (Chen et al. 2020, Generative Pretraining from Pixels) as plain data, without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vitkit.errors import ConfigError
from vitkit.model.options import MOST, check_count

MOST_COLOURS = 2**16


@dataclass(frozen=True, kw_only=True)
class IGPTConfig:
    """A GPT-2 over the pixels of a small image, each one of `colours` colours. Fields are options of `create`."""

    depth: int
    width: int
    mlp: int
    heads: int
    image: tuple[int, int] = (32, 32)  # height, width; a token for each pixel
    channels: int = 3
    colours: int = 512  # of the palette
    classes: int = 1000  # 0: no head, the model returns the representation
    causal: bool = True  # whether a pixel sees earlier ones only; False: all of them, as in BERT
    eps: float = 1e-5
    dropout: float = 0.0  # of the embedded pixels and of each residual branch

    def __post_init__(self) -> None:
        for name in ("depth", "width", "mlp", "heads", "channels"):
            check_count(name, getattr(self, name), least=1)
        check_count("classes", self.classes, least=0)
        check_count("colours", self.colours, least=2)
        for side in self.image:
            check_count("image", side, least=1)
        if self.depth > MOST["depth"] or self.colours > MOST_COLOURS:
            raise ConfigError(f"colours={self.colours} is more than a palette can have, {MOST_COLOURS:,}")
        if not isinstance(self.causal, bool):
            raise ConfigError(f"causal={self.causal!r} must be true or false")
        if not (isinstance(self.dropout, int | float) and 0 <= self.dropout < 1):
            raise ConfigError(f"dropout={self.dropout!r} is a probability: 0 or more, under 1")
        if not (isinstance(self.eps, int | float) and 0 < self.eps < math.inf):
            raise ConfigError(f"eps={self.eps!r} must be a number above 0")
        if self.width % self.heads:
            raise ConfigError(
                f"a width of {self.width} cannot be shared by {self.heads} heads; heads must divide the width"
            )

    # What follows has the same names in a ViTConfig: code that reads tokens and positions of both asks for these.

    @property
    def layers(self) -> int:
        return self.depth

    @property
    def stride(self) -> int:
        """The image pixels per token, along a side."""
        return 1

    @property
    def grid(self) -> tuple[int, int]:
        return self.image

    @property
    def patches(self) -> int:
        return self.image[0] * self.image[1]

    @property
    def tokens(self) -> int:
        return self.patches

    @property
    def special_tokens(self) -> int:
        """Return 0: the start of the sequence takes the place of the last pixel, which no other pixel sees."""
        return 0

    @property
    def input_delay(self) -> int:
        """The tokens by which the input is late: 1 in a causal model, where token i reads pixel i - 1."""
        return int(self.causal)

    @property
    def pool(self) -> Literal["gap"]:
        return "gap"

    @property
    def class_token(self) -> bool:
        return False

    @property
    def axial(self) -> bool:
        return False

    @property
    def induced(self) -> int:
        return 0

    @property
    def inject(self) -> Literal["stem"]:
        return "stem"

    @property
    def positions(self) -> Literal["1d"]:
        return "1d"

    @property
    def rotary(self) -> Literal["none"]:
        return "none"
