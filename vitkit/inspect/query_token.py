"""The query token whose attention is shown, and its attention weights on the patch grid.

In a causal model, token i reads pixel i - 1 and predicts pixel i: as a query it stands for the pixel that it predicts,
as a key for the one that it reads. The first token reads the start of the sequence, which has no place in the image.

In the last blocks of a segmenter, mask queries stand in front of the tokens: Q of them, where Q is 0 anywhere else.

Shapes: Q queries, T tokens (special tokens first, the class token before others), h x w patch grid, of pixels in iGPT.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.errors import ConfigError
from vitkit.model.build import TokenModel

Token = Literal["class", "mean"] | tuple[int, int]  # a patch by (row, column); "mean": over all patches


def default_token(model: TokenModel) -> Token:
    """Return the token that the head reads, the class token first of all; where it reads all patches, their mean."""
    return "class" if model.config.pool in ("token", "token-gap") else "mean"


def default_tokens(model: TokenModel) -> list[Token]:
    """Return the tokens to show: the one that the head reads and, of a causal model, the patch in the middle.

    The mean over a causal model's tokens is large for early pixels, which more tokens see; a single one is not.
    """
    return [default_token(model), *[middle_patch(model)] * (model.config.input_delay > 0)]


def middle_patch(model: TokenModel) -> tuple[int, int]:
    h, w = model.config.grid
    return h // 2, w // 2


def query_weights(model: TokenModel, token: Token | None) -> Tensor:
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


def read_row(query: Tensor, weights: Tensor) -> Tensor:
    """Return the row of a token, or the mean of several: query weights (T,), weights (…, Q + T, Q + T) → (…, Q + T)."""
    return torch.einsum("t,...ts->...s", query.to(weights), weights[..., -len(query) :, :])


def on_patch_grid(model: TokenModel, attention: Tensor) -> Tensor:
    """Reshape the weights of keys (…, Q + T) to (…, h, w), without queries and special tokens, which have no position.

    So is the start of a sequence left out; no token of a causal model reads the last pixel, whose weight is 0.
    """
    config = model.config
    patches = attention[..., attention.shape[-1] - config.patches + config.input_delay :]
    return F.pad(patches, (0, config.input_delay)).unflatten(-1, config.grid)


def describe_token(token: Token) -> str:
    if isinstance(token, tuple):
        return f"the patch in row {token[0]}, column {token[1]}"
    return "the class token" if token == "class" else "all patches on average"
