"""The cost of a Transformer's encoder in closed form: position embeddings, attention, MLP and LayerNorm.

Symbols as in the model: D width, M MLP width, T tokens, H heads.
"""

from collections.abc import Iterator
from typing import NamedTuple

from vitkit.model.config import ViTConfig


class CostTerm(NamedTuple):
    """The cost of a piece of a model; pieces add up."""

    parameters: int = 0
    macs: int = 0
    activations: int = 0
    statistics: int = 0
    kernels: int = 0
    padding_macs: int = 0


def positions(config: ViTConfig) -> CostTerm:
    D, T, (h, w) = config.width, config.tokens, config.grid
    special = config.special_positions
    count = config.depth if config.inject == "every" else 1
    table = {
        "none": 0,
        "sincos": 0,
        "sincos1d": 0,
        "1d": (special + config.patches) * D,
        "2d": (h + w) * D // 2 + D * special,
        "relative": (2 * T - 1) * D,
    }[config.positions]
    if config.positions == "relative":
        # A learned bias rules flash attention out: scaled copies of q, k and v are kept, and the weights.
        kept = 3 * T * D + config.heads * T * T
        return CostTerm(
            count * table,
            config.depth * T * (2 * T - 1) * D,
            config.depth * kept,
            kernels=config.depth * (2 * T - 1) * D,
        )
    return CostTerm(parameters=count * table)


def blocks(config: ViTConfig, left: int) -> Iterator[CostTerm]:
    """Yield a layer: one block over all tokens, or one along rows and one along columns (line lengths differ).

    Where only `left` tokens leave it, the activations of the others are not counted; their multiply-adds are, as in
    every published count.
    """
    D, T, H = config.width, config.tokens, config.heads
    biases = 1 + config.query_bias + config.key_bias + config.value_bias
    for line in config.grid[::-1] if config.axial else (T,):
        yield norm(D, T)
        # normed input, q k v, mixed
        yield CostTerm(4 * D * D + biases * D, T * 4 * D * D, 4 * T * D + left * D, H * left)
        yield CostTerm(macs=2 * T * line * D)  # QKᵀ and AV
        if config.rotary != "none":
            yield CostTerm(activations=2 * T * D)  # turned q and k, beside those that were projected with v
        yield norm(D, left)
        yield CostTerm(activations=left * D)  # the MLP's normed input
        yield mlp(config, left)._replace(macs=mlp(config, T).macs)
        if config.layer_scale is not None:
            yield CostTerm(2 * D, 0, 2 * left * D)  # both branches before they are scaled


def mlp(config: ViTConfig, tokens: int) -> CostTerm:
    """Return the cost of an MLP without its input."""
    D, M = config.width, config.mlp
    if config.swiglu:  # gate and up, SiLU of the gate, the product
        return CostTerm(3 * D * M + 2 * M + D, tokens * 3 * D * M, tokens * 4 * M)
    kept = 3 if config.gelu == "quick" else 2  # GELU in and out, and the sigmoid of the quick one
    return CostTerm(2 * D * M + M + D, tokens * 2 * D * M, tokens * kept * M)


def norm(width: int, tokens: int) -> CostTerm:
    """LayerNorm keeps its input, a mean and a deviation per token."""
    return CostTerm(2 * width, 0, tokens * width, 2 * tokens)
