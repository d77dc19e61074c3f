"""What a model costs, in closed form: parameters, multiply-adds, training compute, memory. No torch, no model built.

MACs are those of all matrix products, attention's included, for one image forward. Training takes six times as many
floating-point operations: two per MAC, once forward and twice backward. That rule gives the paper's Table 6.

Symbols as in the model: D width, M MLP width, T tokens, N patches, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from vitkit.model.config import GROUPS, ConvConfig, ModelConfig, ResNetConfig, ViTConfig

FLOPS_PER_TRAINED_MAC = 6
ADAM_BYTES_PER_PARAMETER = 16  # weight, gradient and two moments in fp32
STATISTIC_BYTES = 4
BYTES = {"fp32": 4, "bf16": 2, "fp8": 2}  # of a number that is kept: of 8 bits are only those in products


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one model; `activations` and `statistics` are numbers kept for the backward pass of one image."""

    parameters: int
    macs: int
    activations: int
    statistics: int  # means, deviations, log-sum-exps and indices, whose size does not follow the precision
    kernels: int  # standardised kernels, scaled offsets and the like, kept once per step whatever the batch

    def exaflops(self, images: float, epochs: float = 1.0) -> float:
        """Of training on `images` pictures for `epochs` passes."""
        return FLOPS_PER_TRAINED_MAC * self.macs * images * epochs / 1e18

    def activation_bytes(self, batch: int, *, bytes_per_number: int) -> int:
        """What eager training without checkpointing or dropout keeps between forward and backward."""
        per_image = self.activations * bytes_per_number + self.statistics * STATISTIC_BYTES
        return batch * per_image + self.kernels * bytes_per_number

    @property
    def state_bytes(self) -> int:
        """fp32 weights, gradients and Adam's moments."""
        return ADAM_BYTES_PER_PARAMETER * self.parameters


class Part(NamedTuple):
    """A piece of a model; pieces add up."""

    parameters: int = 0
    macs: int = 0
    activations: int = 0
    statistics: int = 0
    kernels: int = 0


def cost(config: ModelConfig) -> Cost:
    parts = list(_vit(config) if isinstance(config, ViTConfig) else _resnet(config))
    return Cost(**{field: sum(getattr(part, field) for part in parts) for field in Part._fields})


def _vit(config: ViTConfig) -> Iterator[Part]:
    D, T, N = config.width, config.tokens, config.patches
    if config.stem:
        yield from _conv_body(config.stem, config.channels, config.image)
    flat = config.embedded_channels * config.patch**2
    yield Part(flat * D + D, N * flat * D, N * flat)
    yield Part(parameters=D * config.class_token)
    yield _positions(config)
    left = 1 if config.answers_from_one_token else T  # that leave the last block
    for layer in range(config.depth):
        yield from _blocks(config, left if layer == config.depth - 1 else T)
    if config.pool == "gap-norm":
        yield _norm(D, tokens=1)
    elif config.norm == "pre":
        yield _norm(D, tokens=left)
    yield from _head(config, left)


def _positions(config: ViTConfig) -> Part:
    D, T, (h, w) = config.width, config.tokens, config.grid
    count = config.depth if config.inject == "every" else 1
    table = {
        "none": 0,
        "sincos": 0,
        "1d": T * D,
        "2d": (h + w) * D // 2 + D * config.class_token,
        "relative": (2 * T - 1) * D,
    }[config.positions]
    if config.positions == "relative":
        # A learned bias rules flash attention out: scaled copies of q, k and v are kept, and the weights.
        kept = 3 * T * D + config.heads * T * T
        return Part(
            count * table,
            config.depth * T * (2 * T - 1) * D,
            config.depth * kept,
            kernels=config.depth * (2 * T - 1) * D,
        )
    return Part(parameters=count * table)


def _blocks(config: ViTConfig, left: int) -> Iterator[Part]:
    """A layer: one block over all tokens, or one along rows and one along columns (the length of a line differs).

    Where only `left` tokens leave it, the others' activations are not there; their multiply-adds are counted all the
    same, as everybody does, and as it is when all tokens are looked at.
    """
    D, M, T, H = config.width, config.mlp, config.tokens, config.heads
    for line in config.grid[::-1] if config.axial else (T,):
        yield _norm(D, T)
        yield Part(4 * D * D + 4 * D, T * 4 * D * D, 4 * T * D + left * D, H * left)  # normed input, q k v, mixed
        yield Part(macs=2 * T * line * D)  # QKᵀ and AV
        yield _norm(D, left)
        yield Part(2 * D * M + M + D, T * 2 * D * M, left * (D + 2 * M))  # normed input, GELU in and out


def _head(config: ViTConfig, left: int) -> Iterator[Part]:
    D, M, T, K = config.width, config.mlp, config.tokens, config.classes
    if config.pool == "attention":
        yield Part(D + 4 * D * D + 4 * D, 2 * D * D + T * 2 * D * D + 2 * T * D, 3 * T * D)
        yield _norm(D, tokens=1)
        yield Part(2 * D * M + M + D, 2 * D * M, 2 * M)
    elif config.pool == "token":
        yield Part(activations=left * D)  # the class token is a view of all normed tokens, which stay with it
    R = config.representation or D
    if config.representation:
        yield Part(D * R + R, D * R, R)
    if K:
        yield Part(R * K + K, R * K, R if config.pool != "token" else 0)


def _norm(width: int, tokens: int) -> Part:
    """LayerNorm keeps its input, a mean and a deviation per token."""
    return Part(2 * width, 0, tokens * width, 2 * tokens)


def _resnet(config: ResNetConfig) -> Iterator[Part]:
    yield from _conv_body(config.body, config.channels, config.image)
    width = config.body.channels_out
    if config.classes:
        yield Part(width * config.classes + config.classes, width * config.classes, width)


def _conv_body(conv: ConvConfig, channels: int, image: tuple[int, int]) -> Iterator[Part]:
    half = _halve(image)
    yield _conv(channels, conv.width, 7, _area(half), _area(image))
    if not conv.preactivation:
        yield _group_norm(conv.width, _area(half))
        yield Part(activations=conv.width * _area(half))  # ReLU's output; max-pooling keeps a padded copy of it
    size = _halve(half)
    yield Part(activations=conv.width * _area(half), statistics=2 * conv.width * _area(size))  # 64-bit indices
    inputs = conv.width
    for stage, units in enumerate(conv.layers):
        middle = conv.width * 2**stage
        for unit in range(units):
            before = _area(size)
            strided = stage > 0 and unit == 0
            size = _halve(size) if strided else size
            yield from _unit(conv, inputs, middle, before, _area(size), projected=unit == 0)
            inputs = 4 * middle
    if conv.preactivation:
        yield _group_norm(inputs, _area(size))
    if conv.preactivation or conv.layers:
        yield Part(activations=inputs * _area(size))  # the last ReLU's output


def _unit(conv: ConvConfig, inputs: int, middle: int, before: int, after: int, *, projected: bool) -> Iterator[Part]:
    """A bottleneck; `before` and `after` are the pixels on either side of its stride."""
    outputs = 4 * middle
    normed = (
        ((inputs, before), (middle, before), (middle, after))
        if conv.preactivation
        else ((middle, before), (middle, after), (outputs, after))
    )
    for channels, pixels in normed:
        yield _group_norm(channels, pixels)
    yield _conv(inputs, middle, 1, before, before)
    yield _conv(middle, middle, 3, after, before)
    yield _conv(middle, outputs, 1, after, after)
    if projected:
        # its input is the first convolution's
        yield _conv(inputs, outputs, 1, after, before)._replace(activations=0)
        if not conv.preactivation:
            yield _group_norm(outputs, after)
    if not conv.preactivation and before != after:
        yield Part(activations=middle * before)  # SAME padding at a stride copies the input


def _conv(inputs: int, outputs: int, kernel: int, pixels_out: int, pixels_in: int) -> Part:
    """A convolution keeps its input and its standardised kernel; normalisation (its own part) keeps its output."""
    weights = inputs * outputs * kernel**2
    return Part(weights, weights * pixels_out, inputs * pixels_in, kernels=2 * weights)


def _group_norm(channels: int, pixels: int) -> Part:
    return Part(2 * channels, 0, channels * pixels, 2 * GROUPS)


def _area(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def _halve(size: tuple[int, int]) -> tuple[int, int]:
    return -(-size[0] // 2), -(-size[1] // 2)
