"""The cost of a Transformer's encoder in closed form: patch and position embeddings, attention, MLP and LayerNorm.

Symbols as in the model: D width, M MLP width, T tokens, H heads.
"""

from collections.abc import Iterator

from vitkit.cost_term import CostTerm
from vitkit.model.config import ViTConfig
from vitkit.model.options import BETWEEN_PATCHES
from vitkit.resnet_cost import conv_body


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
        "relative-2d": (2 * h - 1 + 2 * w - 1) * D // 2,
        "quadratic": 3 * config.heads,
        "quadratic-general": 6 * config.heads,
    }[config.positions]
    if not config.content:
        return _positional_scores(config, count, table)
    if config.positions in BETWEEN_PATCHES:
        learned = config.positions == "relative-2d"
        macs = T * (h + w) * D // 2 if learned else 0
        # The weights, copies of the query's two halves, and of scaled copies the mean: torch keeps q, k and v beside
        # scaled q and k for one image, but scaled q and k and a copy of v for several.
        kept = config.heads * T * T + T * D * learned + T * D
        # embeddings of all pairs along each side, or distances and their squares
        once = (h * h + w * w) * (D // 2 if learned else 4 * config.heads)
        return CostTerm(count * table, config.depth * macs, config.depth * kept, kernels=config.depth * once)
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


def _positional_scores(config: ViTConfig, count: int, table: int) -> CostTerm:
    """Return the cost of scores that no query enters; a training step computes them once, whatever the batch."""
    (h, w), macs = config.grid, 0
    weights = config.depth * config.heads * config.patches**2
    if config.positions == "relative-2d":  # whole embeddings, and two vectors of each head that choose among them
        table = 2 * table + 2 * config.heads * config.width
        macs = (2 * h - 1 + 2 * w - 1) * config.width * config.heads
    return CostTerm(count * table, config.depth * macs, kernels=weights)


def embedding(config: ViTConfig) -> Iterator[CostTerm]:
    """Yield what turns an image into the input of the first block."""
    if config.stem:
        yield from conv_body(config.stem, config.channels, config.image)
    D, flat = config.width, config.embedded_channels * config.patch**2
    yield CostTerm(flat * D + D * config.patch_bias, config.patches * flat * D, config.patches * flat)
    yield CostTerm(parameters=D * config.special_tokens)
    yield positions(config)
    if config.ln_pre:
        yield norm(D, config.tokens)


def blocks(config: ViTConfig, left: int, queries: int = 0) -> Iterator[CostTerm]:
    """Yield a layer: one block over all tokens, or one along rows and one along columns (line lengths differ).

    Where only `left` tokens leave it, the activations of the others are not counted; their multiply-adds are, as in
    every published count. `queries` stand beside the tokens of the image.
    """
    D, T, H = config.width, config.tokens + queries, config.heads
    if config.induced:
        m = config.induced
        yield CostTerm(parameters=m * D)
        yield from cross_block(config, m, T)
        yield from cross_block(config, T, m)
        return
    biases = 1 + config.query_bias + config.key_bias + config.value_bias
    for line in config.grid[::-1] if config.axial else (T,):
        yield norm(D, T)
        if config.content:
            # normed input, q k v, mixed
            yield CostTerm(4 * D * D + biases * D, T * 4 * D * D, 4 * T * D + left * D, H * left)
            yield CostTerm(macs=2 * T * line * D)  # QKᵀ and AV
        else:  # normed input, mixed by each head, projected
            yield CostTerm((H + 1) * D * D + 2 * D, T * (T * H + H * D + D) * D, T * (H + 2) * D)
        if config.rotary != "none":
            yield CostTerm(activations=2 * T * D)  # turned q and k, beside those that were projected with v
        yield norm(D, left)
        yield CostTerm(activations=left * D)  # the MLP's normed input
        yield mlp(config, left)._replace(macs=mlp(config, T).macs)
        if config.layer_scale is not None:
            yield CostTerm(2 * D, 0, 2 * left * D)  # both branches before they are scaled


def cross_block(config: ViTConfig, queries: int, context: int, *, context_normed: bool = False) -> Iterator[CostTerm]:
    """Yield a block in which some tokens attend to others (the Set Transformer's MAB)."""
    D, Q, S, H = config.width, queries, context, config.heads
    yield norm(D, Q)
    if config.norm == "pre" and not context_normed:
        yield norm(D, S)
        yield CostTerm(activations=S * D)  # the normed context
    # normed queries, q, k v, mixed
    yield CostTerm(4 * D * D + 4 * D, (2 * Q + 2 * S) * D * D, 3 * Q * D + 2 * S * D, H * Q)
    yield CostTerm(macs=2 * Q * S * D)
    yield norm(D, Q)
    yield CostTerm(activations=Q * D)  # the MLP's normed input
    yield mlp(config, Q)
    if config.layer_scale is not None:
        yield CostTerm(2 * D, 0, 2 * Q * D)


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
