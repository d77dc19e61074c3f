"""The Vision Transformer (paper Figure 1): patches → tokens → encoder → head.

Shapes: B batch, C channels, N patches, T tokens, D width, K classes.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from vitkit.errors import SizeError
from vitkit.model.base import ImageModel
from vitkit.model.capture import Seen, keep
from vitkit.model.config import PositionTransfer, ViTConfig
from vitkit.model.encoder import Encoder
from vitkit.model.heads import Head, build_pool
from vitkit.model.patches import PatchEmbedding
from vitkit.model.resize_positions import Interpolation, check_transfer
from vitkit.model.resnet import ConvBody


class VisionTransformer(ImageModel[ViTConfig]):
    def __init__(self, config: ViTConfig):
        super().__init__(config)
        self.stem = ConvBody(config.stem, config.channels) if config.stem else None
        self.patches = PatchEmbedding(channels=config.embedded_channels, patch=config.patch, width=config.width)
        self.class_token = nn.Parameter(torch.zeros(1, config.width)) if config.class_token else None
        self.encoder = Encoder(config)
        self.pool = build_pool(config)
        self.head = Head(width=config.width, classes=config.classes, representation=config.representation)

    @property
    def captures(self) -> tuple[str, ...]:
        stem = self.stem.captures if self.stem is not None else ()
        views = ("rows/attention", "columns/attention") if self.config.axial else ("attention",)
        blocks = [
            name
            for layer in range(self.config.depth)
            for name in (*(f"block{layer}/{view}" for view in views), f"block{layer}")
        ]
        return (*stem, "patches", "tokens", *blocks, "encoded", "representation")

    @property
    def representation_width(self) -> int:
        return self.config.width

    def pool_image(self, images: Tensor, seen: Seen) -> Tensor:
        return self.pool(self.encode(self.embed(images, seen), seen))  # (B, D)

    def embed(self, images: Tensor, seen: Seen | None = None) -> Tensor:
        """Return the patch embeddings of images (B, N, D), before class token and positions."""
        seen = {} if seen is None else seen
        features = images if self.stem is None else self.stem(images, seen)
        patches = self.patches(features)
        keep(seen, "patches", patches)
        return patches

    def encode(self, patches: Tensor, seen: Seen | None = None) -> Tensor:
        """Return the encoded tokens of patch embeddings (B, T, D), the class token first if there is one."""
        return self.encoder(self.tokens(patches), {} if seen is None else seen)

    def tokens(self, patches: Tensor) -> Tensor:
        """Prepend the class token, if there is one: (B, N, D) → (B, T, D)."""
        if self.class_token is None:
            return patches
        return torch.cat([self.class_token.expand(patches.shape[0], 1, -1), patches], dim=1)

    def resize(
        self,
        image: int | tuple[int, int],
        interpolation: Interpolation = "paper",
        positions: PositionTransfer = "interpolate",
    ) -> None:
        before = self.config
        self._reconfigure(image=image)
        try:
            check_transfer(before, self.config.grid, positions)
            if self.config.grid != before.grid or positions == "fresh":
                self.encoder.resize(self.config, interpolation, positions)
        except Exception:
            self.config = before
            raise

    def replace_head(self, classes: int) -> None:
        super().replace_head(classes)
        self.config = replace(self.config, representation=None)

    def check_images(self, images: Tensor) -> None:
        super().check_images(images)
        height, width = self.config.image
        if images.shape[2] != height or images.shape[3] != width:
            raise SizeError(
                f"images are {images.shape[2]} x {images.shape[3]}, the model is for {height} x {width}",
                try_="model.resize((height, width)) or vitkit.load(…, image=(height, width)), "
                "which interpolate the positions",
            )
