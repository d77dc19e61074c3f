"""iGPT (Chen et al. 2020, Generative Pretraining from Pixels): a GPT-2 that reads an image pixel by pixel.

Each pixel becomes one of K colours and each colour a token. The causal model reads the start of the sequence, then the
pixels in raster order, and what it has seen up to there predicts the next: position i knows the pixels before pixel i.
The BERT-style variant sees all pixels but the hidden ones.

Shapes: B batch, C channels, N = height·width pixels, K colours, D width, H heads, d = D / H.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.attention import attention_weights, split_heads
from vitkit.model.base import ImageModel, Prepared
from vitkit.model.capture import Seen, keep
from vitkit.model.heads import Head
from vitkit.model.igpt_config import IGPTConfig
from vitkit.model.mlp import Mlp
from vitkit.model.options import PositionTransfer
from vitkit.model.palette import kmeans_palette, nearest_colours, uniform_palette
from vitkit.model.resize_positions import Interpolation, check_transfer, resize_table, stretch_table

PALETTE_IMAGES = 2048  # that the palette is fitted to

Keys = tuple[Tensor, Tensor]  # keys and values of the positions so far: (B, H, N, d) each


class RootMeanSquareNorm(nn.Module):
    """iGPT's norm: the token divided by its root mean square, times a gain; no mean is subtracted, no bias added."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D)
        # fp32 at least: a mean of squares needs more bits than bf16 has
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide * (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()).to(x.dtype) * self.gain


class PixelAttention(nn.Module):
    """Self-attention over pixels, causal or not."""

    def __init__(self, config: IGPTConfig):
        super().__init__()
        self.heads, self.causal = config.heads, config.causal
        self.qkv = _normal(config.width, 3 * config.width, std=config.width**-0.5)
        self.out = _normal(config.width, config.width, std=(config.width * config.depth) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D)
        query, key, value = split_heads(self.qkv(x), self.heads)  # (B, H, N, d) each
        return self._mix(F.scaled_dot_product_attention(query, key, value, is_causal=self.causal))

    def extend(self, x: Tensor, past: Keys, start: int) -> Tensor:
        """Attend from positions `start` on, x (B, n, D), to all so far; the keys and values of x are added to `past`.

        Either all positions so far come at once, from 0 on, or one does.
        """
        query, key, value = split_heads(self.qkv(x), self.heads)  # (B, H, n, d) each
        end = start + x.shape[1]
        for stored, new in zip(past, (key, value), strict=True):
            stored[:, :, start:end] = new
        keys, values = (stored[:, :, :end] for stored in past)
        return self._mix(F.scaled_dot_product_attention(query, keys, values, is_causal=x.shape[1] > 1))

    def weights(self, x: Tensor) -> Tensor:
        """Return the attention weights that `forward` uses: (B, H, N, N)."""
        query, key, _ = split_heads(self.qkv(x), self.heads)
        later = torch.full((x.shape[1],) * 2, -math.inf, device=x.device, dtype=x.dtype).triu(1)
        return attention_weights(query, key, later if self.causal else None)

    def _mix(self, mixed: Tensor) -> Tensor:  # (B, H, n, d)
        return self.out(mixed.transpose(1, 2).flatten(2))


class PixelBlock(nn.Module):
    """A pre-norm layer of GPT-2 with iGPT's norm and the logistic GELU."""

    def __init__(self, config: IGPTConfig):
        super().__init__()
        self.attention_norm = RootMeanSquareNorm(config.width, config.eps)
        self.attention = PixelAttention(config)
        self.mlp_norm = RootMeanSquareNorm(config.width, config.eps)
        self.mlp = Mlp(width=config.width, hidden=config.mlp, gelu="quick", dropout=0.0)
        for layer in (self.mlp.up, self.mlp.down):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, seen: Seen, name: str) -> Tensor:  # (B, N, D)
        normed = self.attention_norm(x)
        if f"{name}/attention" in seen:
            seen[f"{name}/attention"] = self.attention.weights(normed)
        x = x + self.dropout(self.attention(normed))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))

    def extend(self, x: Tensor, past: Keys, start: int) -> Tensor:
        """Compute positions from `start` on, given the keys and values of those before."""
        x = x + self.attention.extend(self.attention_norm(x), past, start)
        return x + self.mlp(self.mlp_norm(x))


class PixelEmbedding(nn.Module):
    """The palette, a vector for each of its colours, one for the start of the sequence, and the positions."""

    def __init__(self, config: IGPTConfig):
        super().__init__()
        self.palette = nn.Parameter(uniform_palette(config.colours, config.channels), requires_grad=False)  # (K, C)
        # the last of K + 1 rows is the start of the sequence
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
    """Logits of classes from the mean of the last layer; `next_colour` gives those of the K colours of each pixel."""

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
    def beside_logits(self) -> tuple[nn.Module, ...]:
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

    def prepare(self, images: Tensor, seed: int) -> Prepared:
        """Fit the palette to images (n, C, height, width)."""
        palette, error = kmeans_palette(images, self.config.colours, seed)
        used = len(nearest_colours(images, palette).unique())
        return Prepared(
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


def _normal(inputs: int, outputs: int, *, std: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)
    return layer
