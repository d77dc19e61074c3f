"""The cost of a model in closed form: parameters, multiply-adds, training compute, memory; no torch, no model built.

MACs are those of all matrix products and convolutions, attention's included, for one image forward. Training takes six
times as many floating-point operations: two per MAC, once forward and twice backward. That rule gives the paper's Table
6 (`vitkit.table6`), if products with the zeros that pad a convolution's input do not count.

Symbols as in the model: D width, M MLP width, T tokens, N patches, P projection, R representation, K classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from vitkit.cost_encoder import CostTerm, blocks, cross_block, mlp, norm, positions
from vitkit.model.allow_list import allow
from vitkit.model.config import ConvConfig, ModelConfig, ResNetConfig, ViTConfig
from vitkit.model.options import GROUPS, INSIDE_ATTENTION

FLOPS_PER_TRAINED_MAC = 6
ADAM_BYTES_PER_PARAMETER = 16  # weight, gradient and two moments in fp32
STATISTIC_BYTES = 4
Sides = tuple[int, int]  # height, width
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
    conv="layers width preactivation standardise_eps standardise_on norm_eps",
)


def class_token_suffices(config: ViTConfig) -> bool:
    """Return whether the last block is computed for the class token alone (`vitkit.kernels.fuse`)."""
    absolute = config.positions not in INSIDE_ATTENTION and not config.induced
    return config.pool == "token" and config.distillation == "none" and absolute


def cost(config: ModelConfig) -> Cost:
    COUNTED.check(config)
    parts = list(_vit(config) if isinstance(config, ViTConfig) else _resnet(config))
    return Cost(**{field: sum(getattr(part, field) for part in parts) for field in CostTerm._fields})


def _vit(config: ViTConfig) -> Iterator[CostTerm]:
    D, T, N = config.width, config.tokens, config.patches
    if config.stem:
        yield from _conv_body(config.stem, config.channels, config.image)
    flat = config.embedded_channels * config.patch**2
    yield CostTerm(flat * D + D * config.patch_bias, N * flat * D, N * flat)
    yield CostTerm(parameters=D * config.special_tokens)
    yield positions(config)
    if config.ln_pre:
        yield norm(D, T)
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


def _resnet(config: ResNetConfig) -> Iterator[CostTerm]:
    yield from _conv_body(config.body, config.channels, config.image)
    width = config.body.channels_out
    if config.classes:
        yield CostTerm(width * config.classes + config.classes, width * config.classes, width)


def _conv_body(conv: ConvConfig, channels: int, image: Sides) -> Iterator[CostTerm]:
    half = _halve(image)
    yield _conv(conv, channels, conv.width, 7, image, stride=2)
    if not conv.preactivation:
        yield _group_norm(conv.width, half)
        yield CostTerm(activations=conv.width * _area(half))  # ReLU's output; max-pooling keeps a padded copy of it
    size = _halve(half)
    yield CostTerm(activations=conv.width * _area(half), statistics=2 * conv.width * _area(size))  # 64-bit indices
    inputs = conv.width
    for stage, units in enumerate(conv.layers):
        middle = conv.width * 2**stage
        for unit in range(units):
            stride = 2 if stage > 0 and unit == 0 else 1
            yield from _unit(conv, inputs, middle, size, stride, projected=unit == 0)
            size = _halve(size) if stride == 2 else size
            inputs = 4 * middle
    if conv.preactivation:
        yield _group_norm(inputs, size)
    if conv.preactivation or conv.layers:
        yield CostTerm(activations=inputs * _area(size))  # the last ReLU's output


def _unit(
    conv: ConvConfig, inputs: int, middle: int, before: Sides, stride: int, *, projected: bool
) -> Iterator[CostTerm]:
    """A bottleneck; `before` is the size in front of its stride."""
    outputs, after = 4 * middle, _halve(before) if stride == 2 else before
    normed = (
        ((inputs, before), (middle, before), (middle, after))
        if conv.preactivation
        else ((middle, before), (middle, after), (outputs, after))
    )
    for channels, size in normed:
        yield _group_norm(channels, size)
    yield _conv(conv, inputs, middle, 1, before)
    yield _conv(conv, middle, middle, 3, before, stride)
    yield _conv(conv, middle, outputs, 1, after)
    if projected:
        # its input is the first convolution's
        yield _conv(conv, inputs, outputs, 1, before, stride)._replace(activations=0)
        if not conv.preactivation:
            yield _group_norm(outputs, after)
    if not conv.preactivation and before != after:
        yield CostTerm(activations=middle * _area(before))  # SAME padding at a stride copies the input


def _conv(conv: ConvConfig, inputs: int, outputs: int, kernel: int, size: Sides, stride: int = 1) -> CostTerm:
    """A convolution keeps its input and its standardised kernel; normalisation (its own part) keeps its output."""
    pairs = inputs * outputs
    weights = pairs * kernel**2
    macs = weights * _area(_halve(size) if stride == 2 else size)
    inside = [_products_inside(side, kernel, stride, same=not conv.preactivation) for side in size]
    return CostTerm(
        weights, macs, inputs * _area(size), kernels=2 * weights, padding_macs=macs - pairs * inside[0] * inside[1]
    )


def _products_inside(side: int, kernel: int, stride: int, *, same: bool) -> int:
    """Count the products along a side, over all outputs, that do not fall on padding: SAME's, or alike at both ends."""
    outputs = -(-side // stride)
    last = (outputs - 1) * stride + kernel - side  # what the last output reaches beyond the side, without padding
    before = max(last, 0) // 2 if same else (kernel - 1) // 2
    outside = sum(range(before, 0, -stride)[:outputs]) + sum(range(last - before, 0, -stride)[:outputs])
    return outputs * kernel - outside


def _group_norm(channels: int, size: Sides) -> CostTerm:
    return CostTerm(2 * channels, 0, channels * _area(size), 2 * GROUPS)


def _area(size: Sides) -> int:
    return size[0] * size[1]


def _halve(size: Sides) -> Sides:
    return -(-size[0] // 2), -(-size[1] // 2)
