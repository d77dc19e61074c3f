"""The cost of a model in closed form: parameters, multiply-adds, training compute, memory; no torch, no model built.

MACs are those of all matrix products and convolutions, attention's included, for one image forward. Training takes six
times as many floating-point operations: two per MAC, once forward and twice backward. That rule gives the paper's Table
6 (`vitkit.table6`), if products with the zeros that pad a convolution's input do not count.

Symbols as in the model: D width, M MLP width, T tokens, N patches, P projection, R representation, K classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from vitkit.cost_term import CostTerm
from vitkit.encoder_cost import blocks, cross_block, embedding, mlp, norm
from vitkit.model.allow_list import allow
from vitkit.model.config import ModelConfig, ResNetConfig, ViTConfig
from vitkit.model.igpt_config import IGPTConfig
from vitkit.model.options import INSIDE_ATTENTION
from vitkit.model.segmenter_config import SegmenterConfig
from vitkit.resnet_cost import conv_body
from vitkit.segmenter_cost import segmenter

FLOPS_PER_TRAINED_MAC = 6
ADAM_BYTES_PER_PARAMETER = 16  # weight, gradient and two moments in fp32
STATISTIC_BYTES = 4
BYTES = {"fp32": 4, "bf16": 2, "fp8": 2}  # of a stored activation: fp8 is for products only


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one model; `activations` and `statistics` count what the backward pass of one image needs."""

    parameters: int
    macs: int
    padding_macs: int  # of these, products with the zeros that pad the input of a convolution
    activations: int
    statistics: int  # means, deviations, log-sum-exps and indices, whose size does not follow the precision
    kernels: int  # standardised kernels, scaled offsets and the like, kept once per step whatever the batch

    def exaflops(self, images: float, epochs: float = 1.0, *, padding: bool = True) -> float:
        """Return the compute of training on `images` images for `epochs` epochs, with or without padding's products."""
        macs = self.macs if padding else self.macs - self.padding_macs
        return FLOPS_PER_TRAINED_MAC * macs * images * epochs / 1e18

    def activation_bytes(self, batch: int, *, bytes_per_number: int) -> int:
        """Return the bytes that eager training keeps between forward and backward, without checkpointing or dropout."""
        per_image = self.activations * bytes_per_number + self.statistics * STATISTIC_BYTES
        return batch * per_image + self.kernels * bytes_per_number

    @property
    def state_bytes(self) -> int:
        """The bytes of fp32 weights, gradients and Adam's moments."""
        return ADAM_BYTES_PER_PARAMETER * self.parameters

    def largest_batch(self, memory: float, *, bytes_per_number: int) -> int:
        """Return the images that a training step can have in so many bytes: state and activations fill them."""
        once = self.state_bytes + self.activation_bytes(0, bytes_per_number=bytes_per_number)
        per_image = self.activations * bytes_per_number + self.statistics * STATISTIC_BYTES
        return max(int((memory - once) // per_image), 0)


COUNTED = allow(
    "the cost calculator",
    vit="depth width mlp heads patch stem image channels classes positions inject pool class_token representation "
    "norm axial gelu eps dropout stochastic_depth "
    "patch_bias class_position distillation registers projection normalise "
    "ln_pre query_bias key_bias value_bias swiglu layer_scale rotary rotary_base rotary_layout content induced seeds",
    resnet="body image channels classes",
    conv="layers width preactivation standardise_eps standardise_on norm_eps attention",
    attention="kind heads stages key_share value_share least_key pool window",
    igpt="depth width mlp heads image channels colours classes causal eps dropout",
    segmenter="backbone head classes queries query_blocks",
)


def class_token_suffices(config: ViTConfig) -> bool:
    """Return whether the last block is computed for the class token alone (`vitkit.kernels.fuse`)."""
    absolute = config.positions not in INSIDE_ATTENTION and not config.induced
    return config.pool == "token" and config.distillation == "none" and absolute


def cost(config: ModelConfig) -> Cost:
    COUNTED.check(config)
    parts = list(_parts(config))
    return Cost(**{field: sum(getattr(part, field) for part in parts) for field in CostTerm._fields})


def _parts(config: ModelConfig) -> Iterator[CostTerm]:
    if isinstance(config, IGPTConfig):
        return _igpt(config)
    if isinstance(config, SegmenterConfig):
        return segmenter(config)
    return _resnet(config) if isinstance(config, ResNetConfig) else _vit(config)


def _vit(config: ViTConfig) -> Iterator[CostTerm]:
    D, T = config.width, config.tokens
    yield from embedding(config)
    left = 1 if class_token_suffices(config) else T  # tokens that leave the last block
    for layer in range(config.depth):
        yield from blocks(config, left if layer == config.depth - 1 else T)
    if config.pool == "gap-norm":
        yield norm(D, tokens=1)
    elif config.norm == "pre":
        yield norm(D, tokens=left)
    yield from _head(config, left)


def _head(config: ViTConfig, left: int) -> Iterator[CostTerm]:
    D, T, K = config.width, config.tokens, config.classes
    if config.pool == "attention":
        yield CostTerm(D + 4 * D * D + 4 * D, 2 * D * D + T * 2 * D * D + 2 * T * D, 3 * T * D)
        yield norm(D, tokens=1)
        yield mlp(config, 1)
    if config.pool == "seeds":
        yield CostTerm(parameters=config.seeds * D)
        yield from cross_block(config, config.seeds, T, context_normed=True)
        if config.seeds > 1:
            yield from cross_block(config, config.seeds, config.seeds)
    width = config.pooled_width
    # the class token is a view of all normed tokens, which stay with it; other ways to pool make a vector
    kept = left * D if config.pool == "token" else width
    if P := config.projection:
        yield CostTerm(width * P, width * P, kept)
        width = kept = P
    if R := config.representation:
        yield CostTerm(width * R + R, width * R, kept)
        width = kept = R
    if config.normalise:  # keeps its input and two lengths, the second one not below a bound
        yield CostTerm(activations=kept, statistics=2)
        kept = width
    if K and config.distillation == "heads":
        yield CostTerm(width * K + 2 * K, width * K, kept)
    elif K:
        yield CostTerm(width * K + K, width * K, kept)
    elif R or config.pool == "token":
        yield CostTerm(activations=kept)  # the output, which tanh or a view keeps


def _igpt(config: IGPTConfig) -> Iterator[CostTerm]:
    """Yield the parts of an iGPT; causal attention counts as full, as in every published count."""
    D, N, K, C = config.width, config.tokens, config.colours, config.channels
    yield CostTerm(K * C, N * K * C)  # the palette, and the distances to its colours
    yield CostTerm((K + 1) * D + N * D, statistics=2 * N)  # 64-bit tokens
    block = ViTConfig(depth=1, width=D, mlp=config.mlp, heads=config.heads, patch=1, image=config.image, gelu="quick")
    for _ in range(config.depth):
        yield _gain_norm(D, N)
        # normed input, q k v, mixed
        yield CostTerm(4 * D * D + 4 * D, N * 4 * D * D + 2 * N * N * D, 5 * N * D, config.heads * N)
        yield _gain_norm(D, N)
        yield CostTerm(activations=N * D)  # the MLP's normed input
        yield mlp(block, N)
    yield _gain_norm(D, N)
    yield CostTerm(K * D)  # the layer that predicts colours, which logits of classes do not need
    if config.classes:
        yield CostTerm(D * config.classes + config.classes, D * config.classes, D)


def _gain_norm(width: int, tokens: int) -> CostTerm:
    """Division by the root mean square keeps its input, its output before the gain, and a number per token."""
    return CostTerm(width, 0, 2 * tokens * width, tokens)


def _resnet(config: ResNetConfig) -> Iterator[CostTerm]:
    yield from conv_body(config.body, config.channels, config.image)
    width = config.body.channels_out
    if config.classes:
        yield CostTerm(width * config.classes + config.classes, width * config.classes, width)
