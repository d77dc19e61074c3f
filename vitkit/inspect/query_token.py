"""The query token whose attention is shown, and its attention weights on the patch grid.

Shapes: T tokens (special tokens first, the class token before others), h x w patch grid.
"""

from typing import Literal

import torch
from torch import Tensor

from vitkit.errors import ConfigError
from vitkit.model.vit import VisionTransformer

Token = Literal["class", "mean"] | tuple[int, int]  # a patch by (row, column); "mean": over all patches


def default_token(model: VisionTransformer) -> Token:
    """Return the token that the head reads, the class token first of all; where it reads all patches, their mean."""
    return "class" if model.config.pool in ("token", "token-gap") else "mean"


def query_weights(model: VisionTransformer, token: Token | None) -> Tensor:
    """Return the weight of each token as a query: (T,), sums to 1."""
    token = default_token(model) if token is None else token
    config, weights = model.config, torch.zeros(model.config.tokens)
    if token == "mean":
        weights[config.special_tokens :] = 1 / config.patches
    elif token == "class":
        if not config.class_token:
            raise ConfigError("this model has no class token", try_="mean, or a patch: ROW COLUMN")
        weights[0] = 1
    elif isinstance(token, str):
        raise ConfigError(f"there is no token {token!r}", try_="class, mean, or a patch: (row, column)")
    else:
        row, column = token
        h, w = config.grid
        if not (0 <= row < h and 0 <= column < w):
            raise ConfigError(
                f"there is no patch at row {row}, column {column}", grid=f"{h} rows, {w} columns, counted from 0"
            )
        weights[config.special_tokens + row * w + column] = 1
    return weights


def on_patch_grid(model: VisionTransformer, attention: Tensor) -> Tensor:
    """Reshape (…, T) to (…, h, w), without special tokens, which have no position in the image."""
    return attention[..., model.config.special_tokens :].unflatten(-1, model.config.grid)


def describe_token(token: Token) -> str:
    if isinstance(token, tuple):
        return f"the patch in row {token[0]}, column {token[1]}"
    return "the class token" if token == "class" else "all patches on average"
