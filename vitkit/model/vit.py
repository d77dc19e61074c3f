"""The Vision Transformer (paper Figure 1): patches → tokens → encoder → head.

Shapes: B batch, C channels, N patches, T tokens, D width, V pooled width (D or 2·D), K classes.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitkit.model.base import ImageModel
from vitkit.model.capture import Seen, keep
from vitkit.model.config import ViTConfig
from vitkit.model.encoder import Encoder, attention_views
from vitkit.model.heads import Head, MeanPool, build_pool
from vitkit.model.initialise import linear
from vitkit.model.options import PositionTransfer, check_count
from vitkit.model.patches import PatchEmbedding
from vitkit.model.resize_positions import Interpolation, check_transfer
from vitkit.model.resnet import ConvBody


class VisionTransformer(ImageModel[ViTConfig]):
    kind = "a ViT"
    recomputable = True

    def __init__(self, config: ViTConfig):
        super().__init__(config)
        self.stem = ConvBody(config.stem, config.channels, config.image) if config.stem else None
        self.patches = PatchEmbedding(
            channels=config.embedded_channels, patch=config.patch, width=config.width, bias=config.patch_bias
        )
        self.class_token = nn.Parameter(torch.zeros(1, config.width)) if config.class_token else None
        self.distillation_token = _random_tokens(1, config.width) if config.distillation != "none" else None
        self.register_tokens = _random_tokens(config.registers, config.width) if config.registers else None
        self.encoder = Encoder(config)
        self.pool = build_pool(config)
        self.projection = linear(config.pooled_width, config.projection, bias=False) if config.projection else None
        self.head = Head(
            width=self.representation_width,
            classes=config.classes,
            representation=config.representation,
            distilled=config.distillation == "heads",
            normalise=config.normalise,
        )

    @property
    def captures(self) -> tuple[str, ...]:
        stem = self.stem.captures if self.stem is not None else ()
        views = attention_views(self.config)
        blocks = [
            name
            for layer in range(self.config.depth)
            for name in (*(f"block{layer}/{view}" for view in views), f"block{layer}")
        ]
        pooled = ("pooled",) if self.config.projection else ()
        return (*stem, "patches", "tokens", *blocks, "encoded", *pooled, "representation")

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(f"block{layer}" for layer in range(self.config.depth))

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return tuple(self.encoder.blocks)

    @property
    def representation_width(self) -> int:
        return self.config.projection or self.config.pooled_width

    def pool_image(self, images: Tensor, seen: Seen) -> Tensor:
        pooled = self.pool(self.encode(self.embed(images, seen), seen))  # (B, V)
        keep(seen, "pooled", pooled)
        return pooled if self.projection is None else self.projection(pooled)

    def pool_layer(self, layer: str, value: Tensor) -> Tensor:
        """Return the class token of a layer where the head reads it, else the mean of its patches; both normed."""
        tokens = self.encoder.norm(value)
        if self.config.pool == "token":
            return tokens[:, 0]
        mean = tokens[:, self.config.special_tokens :].mean(dim=1)
        return self.pool.norm(mean) if isinstance(self.pool, MeanPool) else mean

    def embed(self, images: Tensor, seen: Seen | None = None) -> Tensor:
        """Return the patch embeddings of images (B, N, D), before special tokens and positions."""
        seen = {} if seen is None else seen
        features = images if self.stem is None else self.stem(images, seen)
        patches = self.patches(features)
        keep(seen, "patches", patches)
        return patches

    def encode(self, patches: Tensor, seen: Seen | None = None) -> Tensor:
        """Return the encoded tokens of patch embeddings (B, T, D); the last N are the patches."""
        return self.encoder(self.tokens(patches), {} if seen is None else seen)

    def tokens(self, patches: Tensor) -> Tensor:
        """Prepend the special tokens, if there are any: (B, N, D) → (B, T, D)."""
        special = [
            tokens.expand(patches.shape[0], -1, -1)
            for tokens in (self.class_token, self.distillation_token, self.register_tokens)
            if tokens is not None
        ]
        return torch.cat([*special, patches], dim=1) if special else patches

    def resize(
        self,
        image: int | tuple[int, int],
        interpolation: Interpolation | None = None,
        positions: PositionTransfer = "interpolate",
    ) -> None:
        before = self.config
        self._reconfigure(image=image)
        try:
            check_transfer(before, self.config.grid, positions)
            if self.config.grid != before.grid or positions == "fresh":
                self.encoder.resize(self.config, interpolation or self.metadata.interpolation, positions)
        except Exception:
            self.config = before
            raise

    def replace_head(self, classes: int) -> None:
        check_count("classes", classes, least=0)
        distillation = "token" if self.config.distillation == "heads" else self.config.distillation
        # first: the options of the old head need not fit the new number of classes
        self.config = replace(self.config, representation=None, distillation=distillation, normalise=False)
        super().replace_head(classes)

    def check_images(self, images: Tensor) -> None:
        super().check_images(images)
        self.check_size(images)


def _random_tokens(count: int, width: int) -> nn.Parameter:
    """Return tokens that differ from each other at the start: equal ones would stay equal."""
    return nn.Parameter(nn.init.normal_(torch.empty(count, width), std=0.02))
