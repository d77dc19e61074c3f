"""The lower half of images, completed by an iGPT: the sheet of samples that `vitkit inspect` draws.

Shapes: B images, S samples of each, N pixels, K colours.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.data.transforms import per_channel
from vitkit.errors import ConfigError
from vitkit.inspect.inference import DoesNotApply, as_model_input, eval_mode
from vitkit.model.build import Model
from vitkit.model.igpt import ImageGPT
from vitkit.model.igpt_sampling import bits_per_pixel, complete

Pixels = NDArray[np.uint8]
UNKNOWN = 128  # grey of the pixels that are to be completed


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The settings of a sheet of completions."""

    samples: int = 4  # of each image
    temperature: float = 1.0
    top_k: int | None = None  # colours to draw from; None: all
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigError(f"samples = {self.samples} must be 1 or more")
        if not 0 <= self.temperature < math.inf:  # nan is neither
            raise ConfigError(f"temperature = {self.temperature:g} must be a number of 0 or more")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k = {self.top_k} must be 1 or more")
        if not 0 <= self.seed < 2**63:  # what torch's generators take
            raise ConfigError(f"seed = {self.seed} must be 0 or more, and less than 2^63")

    def __str__(self) -> str:
        top_k = "" if self.top_k is None else f", of the {self.top_k} likeliest colours"
        return f"temperature {self.temperature:g}{top_k}, seed {self.seed}"


@dataclass(frozen=True)
class Completions:
    sampling: Sampling
    original: Pixels  # (B, height, width, 3), in the colours of the palette
    prompt: Pixels  # (B, height, width, 3), the upper half
    completed: Pixels  # (B, S, height, width, 3)
    bits_per_pixel: NDArray[np.float32]  # (B,)
    palette: Pixels  # (K, 3)


def completions(model: Model, images: Tensor, sampling: Sampling) -> Completions:
    """Complete the lower half of images (B, C, height, width), preprocessed, or raise DoesNotApply."""
    if not isinstance(model, ImageGPT) or not model.config.causal:
        raise DoesNotApply(
            f"completing images: {model.kind if not isinstance(model, ImageGPT) else 'a model that sees all pixels'} "
            "does not predict pixels from earlier ones"
        )
    if not model.next_colour.weight.any():
        raise DoesNotApply("completing images: the model predicts no colours, its layer for that is zero")
    height, width = model.config.image
    upper = (height + 1) // 2 * width  # pixels that are given
    with eval_mode(model):
        tokens = model.quantise(as_model_input(images, model))  # (B, N)
        bits = bits_per_pixel(model, tokens)
        several = tokens[:, :upper].repeat_interleave(sampling.samples, dim=0)
        drawn = complete(model, several, temperature=sampling.temperature, top_k=sampling.top_k, seed=sampling.seed)
        original, completed = _pixels(model, tokens), _pixels(model, drawn)
        palette = _to_bytes(model, model.embedding.palette.T[None, :, None])[0, 0]
    prompt = original.copy()
    prompt.reshape(len(prompt), -1, 3)[:, upper:] = UNKNOWN
    return Completions(
        sampling,
        original,
        prompt,
        completed.reshape(len(images), sampling.samples, *completed.shape[1:]),
        bits.float().cpu().numpy(),
        palette,
    )


def _pixels(model: ImageGPT, tokens: Tensor) -> Pixels:
    """Return tokens (B, N) as pixels (B, height, width, 3)."""
    return _to_bytes(model, model.colours_of(tokens))


def _to_bytes(model: ImageGPT, images: Tensor) -> Pixels:
    """Return images in the space of the model's input, (B, C, height, width), as pixels (B, height, width, 3)."""
    preprocessing, channels = model.metadata.preprocessing, model.config.channels
    mean, std = (per_channel(values, channels).to(images) for values in (preprocessing.mean, preprocessing.std))
    pixels = ((images * std + mean) * 255).round().clamp(0, 255).byte().cpu()
    shown = pixels[:, :3] if channels >= 3 else pixels[:, :1].expand(-1, 3, -1, -1)
    return torch.movedim(shown, 1, -1).contiguous().numpy()
