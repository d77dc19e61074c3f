"""The configuration of a segmenter as plain data, without torch: a Vision Transformer that gives each pixel a class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from vitkit.errors import ConfigError
from vitkit.model.options import INSIDE_ATTENTION, Injection, Positions, Rotary, check_count
from vitkit.model.vit_config import ViTConfig

SegmentationHead = Literal["linear", "queries"]
MOST_QUERIES = 2**12
# The backbone of a segmenter ends with its tokens: nothing is pooled, and no layer follows.
_NOTHING_AFTER_TOKENS: dict[str, Any] = {
    "classes": 0,
    "representation": None,
    "projection": None,
    "normalise": False,
    "seeds": 1,
}


@dataclass(frozen=True, kw_only=True)
class SegmenterConfig:
    """A Vision Transformer with a head that gives every pixel a class. Other fields than the backbone are options."""

    backbone: ViTConfig
    head: SegmentationHead = "linear"  # on the patch tokens, or mask queries beside them (EoMT)
    classes: int = 1000
    queries: int = 100  # of head="queries"
    query_blocks: int = 4  # the last blocks, which the queries join

    def __post_init__(self) -> None:
        if not isinstance(self.backbone, ViTConfig):
            raise ConfigError(f"backbone={self.backbone!r} should be a ViTConfig", try_="a name, such as Ti/16+linear")
        if self.head not in get_args(SegmentationHead):
            raise ConfigError(f"head={self.head!r} is not known", choose_from=", ".join(get_args(SegmentationHead)))
        for name in ("classes", "queries", "query_blocks"):
            check_count(name, getattr(self, name), least=1)
        needed = {**_NOTHING_AFTER_TOKENS, "pool": _pool(self.backbone)}
        for name, value in needed.items():
            if (actual := getattr(self.backbone, name)) != value:
                raise ConfigError(
                    f"{name}={actual!r}: a segmenter reads the patch tokens, and nothing of its backbone follows them",
                    try_=f"{name}={value!r}",
                )
        if self.head == "queries":
            self._check_queries()

    def _check_queries(self) -> None:
        if self.queries > MOST_QUERIES:
            raise ConfigError(f"queries={self.queries} is more than a model can have, {MOST_QUERIES:,}")
        if self.query_blocks > self.backbone.depth:
            raise ConfigError(
                f"query_blocks={self.query_blocks}, but the model has {self.backbone.depth} blocks",
                try_=f"1 to {self.backbone.depth}",
            )
        if self.backbone.axial or self.backbone.induced or self.backbone.positions in INSIDE_ATTENTION:
            reason = (
                "axial attention runs along rows and columns, and queries are in neither"
                if self.backbone.axial
                else f"induced={self.backbone.induced}: tokens do not attend to each other"
                if self.backbone.induced
                else f"{self.backbone.positions} positions are between tokens, and queries have no place"
            )
            raise ConfigError(f"mask queries attend to all tokens as the tokens do: {reason}", try_="head='linear'")

    @property
    def joined_at(self) -> int:
        """The index of the block that the queries join first; the depth for a linear head, which has none."""
        return self.backbone.depth - (self.query_blocks if self.head == "queries" else 0)

    @property
    def upscalings(self) -> int:
        """The doublings of the patch features for masks, up to a stride of about 4 pixels (EoMT): 2 for /16."""
        return max(self.backbone.stride.bit_length() - 3, 1) if self.head == "queries" else 0

    @property
    def score_grid(self) -> tuple[int, int]:
        """The rows and columns of the scores: the patch grid, or a multiple of it for queries."""
        return self.grid[0] << self.upscalings, self.grid[1] << self.upscalings

    # What follows has the same names in a ViTConfig: code that reads tokens and positions of both asks for these.

    @property
    def image(self) -> tuple[int, int]:
        return self.backbone.image

    @property
    def channels(self) -> int:
        return self.backbone.channels

    @property
    def depth(self) -> int:
        return self.backbone.depth

    @property
    def layers(self) -> int:
        return self.backbone.layers

    @property
    def width(self) -> int:
        return self.backbone.width

    @property
    def mlp(self) -> int:
        return self.backbone.mlp

    @property
    def heads(self) -> int:
        return self.backbone.heads

    @property
    def patch(self) -> int:
        return self.backbone.patch

    @property
    def stride(self) -> int:
        return self.backbone.stride

    @property
    def grid(self) -> tuple[int, int]:
        return self.backbone.grid

    @property
    def patches(self) -> int:
        return self.backbone.patches

    @property
    def special_tokens(self) -> int:
        """The tokens in front of the patches, without the queries."""
        return self.backbone.special_tokens

    @property
    def tokens(self) -> int:
        """The tokens of the backbone, without the queries."""
        return self.backbone.tokens

    @property
    def input_delay(self) -> int:
        return 0

    @property
    def pool(self) -> Literal["gap"]:
        """The features of an image are the mean of its patches, as probes read them."""
        return "gap"

    @property
    def class_token(self) -> bool:
        return self.backbone.class_token

    @property
    def axial(self) -> bool:
        return self.backbone.axial

    @property
    def induced(self) -> int:
        return self.backbone.induced

    @property
    def inject(self) -> Injection:
        return self.backbone.inject

    @property
    def positions(self) -> Positions:
        return self.backbone.positions

    @property
    def rotary(self) -> Rotary:
        return self.backbone.rotary

    @property
    def dropout(self) -> float:
        return self.backbone.dropout

    @property
    def stochastic_depth(self) -> float:
        return self.backbone.stochastic_depth


def segmentation_backbone(config: ViTConfig) -> ViTConfig:
    """Return the config of a classifier's backbone: the same tokens, and nothing that follows them."""
    distillation = "token" if config.distillation == "heads" else config.distillation
    return replace(config, **_NOTHING_AFTER_TOKENS, pool=_pool(config), distillation=distillation)


def with_backbone_options(config: SegmenterConfig, options: Mapping[str, Any]) -> SegmenterConfig:
    """Return the config with other options of its backbone, such as image or channels."""
    return replace(config, backbone=replace(config.backbone, **options))


def _pool(config: ViTConfig) -> Literal["token", "gap"]:
    """Return the pool without weights of its own that goes with these tokens; a segmenter does not pool."""
    return "token" if config.class_token else "gap"
