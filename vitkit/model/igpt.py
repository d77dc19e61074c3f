"""iGPT (Chen et al. 2020, Generative Pretraining from Pixels): a GPT-2 that reads an image pixel by pixel.

Each pixel becomes one of K colours and each colour a token. The causal model reads the start of the sequence, then the
pixels in raster order, and what it has seen up to there predicts the next: position i knows the pixels before pixel i.
The BERT-style variant sees all pixels but the hidden ones.

Shapes: B batch, C channels, N = height·width pixels, K colours, D width.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.model.base import ImageModel, Preparation
from vitkit.model.capture import Seen, keep
from vitkit.model.heads import Head
from vitkit.model.igpt_blocks import PixelBlock, RootMeanSquareNorm
from vitkit.model.igpt_config import IGPTConfig
from vitkit.model.options import PositionTransfer
from vitkit.model.palette import kmeans_palette, nearest_colours, uniform_palette
from vitkit.model.resize_positions import Interpolation, check_transfer, resize_table, stretch_table

PALETTE_IMAGES = 2048  # the training images that k-means sees


class PixelEmbedding(nn.Module):
    """The palette, a vector for each of its colours, one for the start of the sequence, and the positions."""

    def __init__(self, config: IGPTConfig):
        super().__init__()
        self.palette = nn.Parameter(uniform_palette(config.colours, config.channels), requires_grad=False)  # (K, C)
        # token embeddings; the last of K + 1 rows is the start of the sequence (sos)
        self.colours = nn.Parameter(nn.init.normal_(torch.empty(config.colours + 1, config.width), std=0.02))
        self.positions = nn.Parameter(nn.init.normal_(torch.empty(config.patches, config.width), std=0.01))


class PixelEncoder(nn.Module):
    """The blocks and the norm after them."""

    blocks: Any  # a ModuleList forgets the type of what it holds

    def __init__(self, config: IGPTConfig):
        super().__init__()
        self.blocks = nn.ModuleList(PixelBlock(config) for _ in range(config.depth))
        self.norm = RootMeanSquareNorm(config.width, config.eps)


class ImageGPT(ImageModel[IGPTConfig]):
    """Logits of classes from the mean of the last layer; `next_colour`, GPT's lm_head, gives those of colours."""

    kind = "an iGPT"
    recomputable = True
    generates = True
    sampled_images = PALETTE_IMAGES

    def __init__(self, config: IGPTConfig):
        super().__init__(config)
        self.embedding = PixelEmbedding(config)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = PixelEncoder(config)
        self.next_colour = nn.Linear(config.width, config.colours, bias=False)
        nn.init.zeros_(self.next_colour.weight)  # as all projections to logits in the paper
        self.head = Head(width=config.width, classes=config.classes)

    @property
    def captures(self) -> tuple[str, ...]:
        blocks = [name for layer in self.layers for name in (f"{layer}/attention", layer)]
        return ("tokens", *blocks, "encoded", "representation")

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(f"block{layer}" for layer in range(self.config.depth))

    @property
    def blocks(self) -> tuple[nn.Module, ...]:
        return tuple(self.encoder.blocks)

    @property
    def unused_by_logits(self) -> tuple[nn.Module, ...]:
        return (self.next_colour,)

    @property
    def representation_width(self) -> int:
        return self.config.width

    def pool_image(self, images: Tensor, seen: Seen) -> Tensor:
        return self.encode(self.embed(self.quantise(images)), seen).mean(dim=1)  # (B, D)

    def pool_layer(self, layer: str, value: Tensor) -> Tensor:
        """Return the mean over pixels of the normed layer, as the next one reads it: n^l of the paper."""
        following = self.layers.index(layer) + 1
        last = following == self.config.depth
        norm = self.encoder.norm if last else self.encoder.blocks[following].attention_norm
        return norm(value).mean(dim=1)

    def quantise(self, images: Tensor) -> Tensor:
        """Return the index of each pixel's nearest colour in the palette: (B, C, height, width) → (B, N)."""
        with torch.no_grad():  # fp32: bf16 has too few bits for a difference of squares
            return nearest_colours(images.float(), self.embedding.palette.float())

    def colours_of(self, tokens: Tensor) -> Tensor:
        """Return the image of tokens, in the space of the model's input: (B, N) → (B, C, height, width)."""
        return self.embedding.palette[tokens].transpose(1, 2).unflatten(2, self.config.image)

    def embed(self, tokens: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Return the encoder's input for tokens (B, N): (B, N, D).

        The causal model's is one pixel late, after the start of the sequence: position i is asked for pixel i. The
        BERT-style one has zeros in place of `hidden` pixels, a mask (B, N).
        """
        vectors = self.embedding.colours[tokens]
        if self.config.causal:
            start = self.embedding.colours[-1].expand(tokens.shape[0], 1, -1)
            vectors = torch.cat([start, vectors[:, :-1]], dim=1)
        elif hidden is not None:
            vectors = vectors.masked_fill(hidden[..., None], 0.0)
        return self.dropout(vectors + self.embedding.positions)

    def encode(self, x: Tensor, seen: Seen | None = None) -> Tensor:
        """Return the encoder's output for its input (B, N, D)."""
        seen = {} if seen is None else seen
        keep(seen, "tokens", x)
        for layer, block in zip(self.layers, self.encoder.blocks, strict=True):
            x = block(x, seen, layer)
            keep(seen, layer, x)
        x = self.encoder.norm(x)
        keep(seen, "encoded", x)
        return x

    def prepare(self, images: Tensor, seed: int) -> Preparation:
        """Fit the palette to images (n, C, height, width)."""
        palette, error = kmeans_palette(images, self.config.colours, seed)
        used = len(nearest_colours(images, palette).unique())
        return Preparation(
            {"embedding.palette": palette},
            f"{used:,} of {self.config.colours:,} colours by k-means over the pixels of {len(images):,} images; "
            f"the pixels are {error / math.sqrt(self.config.channels) / 2:.1%} of their range away from theirs",
        )

    def resize(
        self,
        image: int | tuple[int, int],
        interpolation: Interpolation | None = None,
        positions: PositionTransfer = "interpolate",
    ) -> None:
        before, table = self.config, self.embedding.positions
        self._reconfigure(image=image)
        after = self.config
        try:
            check_transfer(before, after.grid, positions)
            filtered = interpolation or self.metadata.interpolation
            if positions == "fresh":
                resized = nn.init.normal_(table.new_empty(after.patches, after.width), std=0.01)
            elif after.grid == before.grid:
                return
            elif positions == "stretch":
                resized = stretch_table(table.detach(), after.patches, filtered)
            else:
                resized = resize_table(table.detach(), before.grid, after.grid, filtered)
        except Exception:
            self.config = before
            raise
        self.embedding.positions = nn.Parameter(resized)

    def check_images(self, images: Tensor) -> None:
        super().check_images(images)
        self.check_size(images)
