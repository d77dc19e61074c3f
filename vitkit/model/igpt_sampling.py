"""Sampling from an iGPT, pixel by pixel, and its likelihood of an image in bits per pixel.

A KV cache keeps the keys and values of the pixels so far: a pixel costs one position of the model, not all before it.

Shapes: B images, n pixels that are given, N pixels of an image, K colours, D width, H heads, d = D / H.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.errors import ConfigError
from vitkit.model.igpt import ImageGPT


@torch.no_grad()
def complete(
    model: ImageGPT, tokens: Tensor, *, temperature: float = 1.0, top_k: int | None = None, seed: int = 0
) -> Tensor:
    """Return images whose first pixels are the given ones (B, n), the others drawn from the model: (B, N).

    Logits are divided by `temperature`, at 0 the likeliest colour is taken; `top_k` draws from so many colours only.
    The same seed gives the same images on the same machine.
    """
    _require_causal(model, "completing an image")
    config, device = model.config, tokens.device
    images, start = tokens.shape
    drawn = torch.cat([tokens, tokens.new_zeros(images, config.patches - start)], dim=1)
    shape = (images, config.heads, config.patches, config.width // config.heads)
    past = [
        (torch.empty(shape, device=device, dtype=model.dtype), torch.empty(shape, device=device, dtype=model.dtype))
        for _ in range(config.depth)
    ]
    generator = torch.Generator().manual_seed(seed)
    known = 0  # positions whose keys and values are kept
    for pixel in range(start, config.patches):
        x = model.embed(drawn)[:, known : pixel + 1] if known < pixel else _embed_one(model, drawn, pixel)
        for block, kept in zip(model.encoder.blocks, past, strict=True):
            x = block.extend(x, kept, known)
        known = pixel + 1
        logits = model.next_colour(model.encoder.norm(x[:, -1])).float().cpu()  # (B, K)
        drawn[:, pixel] = draw(logits, temperature, top_k, generator).to(device)
    return drawn


def draw(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> Tensor:
    """Draw a colour of each row of logits (B, K): (B,)."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    below = logits - logits.amax(dim=-1, keepdim=True)  # 0 at most: no quotient overflows to inf, whose softmax is nan
    smallest = torch.finfo(logits.dtype).tiny  # a smaller temperature would be 0 in this dtype
    return torch.multinomial((below / max(temperature, smallest)).softmax(dim=-1), 1, generator=generator)[:, 0]


@torch.no_grad()
def bits_per_pixel(model: ImageGPT, tokens: Tensor) -> Tensor:
    """Return the negative log-likelihood of images (B, N) in bits, per pixel: (B,)."""
    _require_causal(model, "the likelihood of an image")
    logits = model.next_colour(model.encode(model.embed(tokens))).float()
    return F.cross_entropy(logits.transpose(1, 2), tokens, reduction="none").mean(dim=1) / math.log(2)


def _embed_one(model: ImageGPT, tokens: Tensor, pixel: int) -> Tensor:
    """Return the input of one position, which is asked for `pixel`, as `embed` makes it: (B, 1, D)."""
    table = model.embedding.colours
    before = table[tokens[:, pixel - 1]] if pixel else table[-1].expand(len(tokens), -1)
    return (before + model.embedding.positions[pixel])[:, None]


def _require_causal(model: ImageGPT, what: str) -> None:
    if not model.config.causal:
        raise ConfigError(
            f"{what} needs a model that predicts each pixel from earlier ones; this one sees all pixels",
            try_="a model of vitkit pretrain --objective next-pixel",
        )
