"""Initialisers of Google's code that torch does not have."""

import math

import torch
from torch import Tensor, nn

# A normal distribution cut off at two deviations has this deviation left.
_TRUNCATED_STD = 0.87962566103423978


def lecun_normal_(weight: Tensor) -> None:
    """Flax's default for dense layers and convolutions: truncated normal, variance 1 / fan in."""
    fan_in = weight[0].numel()
    std = math.sqrt(1 / fan_in) / _TRUNCATED_STD
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def table(rows: int, width: int) -> nn.Parameter:
    """Return learned embeddings (rows, width), such as those of positions."""
    return nn.Parameter(nn.init.normal_(torch.empty(rows, width), std=0.02))


def linear(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """Return a linear layer initialised as in the paper's encoder: Xavier-uniform weight, zero bias."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
