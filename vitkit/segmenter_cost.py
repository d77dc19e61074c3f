"""The cost of a segmenter in closed form. Multiply-adds are those of inference, activations those of training.

In training, mask queries are read before each block that they are in as well as at the end, and attend to masks.

Symbols as in the model: D width, T tokens, N patches, Q queries, K classes.
"""

from collections.abc import Iterator

from vitkit.cost_term import CostTerm
from vitkit.encoder_cost import blocks, embedding, norm
from vitkit.model.segmenter_config import SegmenterConfig


def segmenter(config: SegmenterConfig) -> Iterator[CostTerm]:
    vit = config.backbone
    D, T, N, K = vit.width, vit.tokens, vit.patches, config.classes
    yield from embedding(vit)
    for _ in range(config.joined_at):
        yield from blocks(vit, T)
    if config.head == "linear":
        yield from _norm_after_blocks(config, T)
        # batch normalisation keeps its input and what it scales, the projection its own input
        yield CostTerm(2 * D, 0, T * D + N * D)
        yield CostTerm(D * K + K, N * D * K, N * D)
        return
    Q = config.queries
    yield CostTerm(Q * D)
    for _ in range(config.query_blocks):
        yield from blocks(vit, Q + T, Q)
        yield CostTerm(activations=(Q + T) ** 2)  # the mask of attention
        for part in (*_norm_after_blocks(config, Q + T), *_read_queries(config)):
            # its input is that of the block
            yield CostTerm(activations=part.activations, statistics=part.statistics)
    yield from _norm_after_blocks(config, Q + T)
    yield from _read_queries(config)
    h, w = config.score_grid
    yield CostTerm(macs=Q * K * h * w)  # each class's sum over the queries


def _norm_after_blocks(config: SegmenterConfig, tokens: int) -> Iterator[CostTerm]:
    if config.backbone.norm == "pre":
        yield norm(config.width, tokens)


def _read_queries(config: SegmenterConfig) -> Iterator[CostTerm]:
    """Yield class logits and masks of all queries, from encoded tokens (Q + T, D), which are kept."""
    D, Q, K = config.width, config.queries, config.classes
    h, w = config.grid
    yield CostTerm(D * (K + 1) + K + 1, Q * D * (K + 1), (Q + config.tokens) * D)
    yield CostTerm(3 * D * D + 3 * D, 3 * Q * D * D, 5 * Q * D)  # GELU's inputs and outputs, the mask embeddings
    for _ in range(config.upscalings):
        yield CostTerm(4 * D * D + D, h * w * 4 * D * D)  # a transposed convolution of 2 x 2
        h, w = 2 * h, 2 * w
        inside = (3 * h - 2) * (3 * w - 2)
        # GELU's input and output, LayerNorm's input and output; a convolution by channel of 3 x 3
        yield CostTerm(9 * D, 9 * h * w * D, 4 * h * w * D, padding_macs=(9 * h * w - inside) * D)
        yield CostTerm(2 * D, statistics=2 * h * w)
    yield CostTerm(macs=Q * D * h * w)
