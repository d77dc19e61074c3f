"""The cost of a ResNet's root and stages in closed form, and the piece of cost that all models are summed from.

Shapes: h x w feature map.
"""

from collections.abc import Iterator
from typing import NamedTuple

from vitkit.model.conv_config import ConvConfig
from vitkit.model.options import GROUPS

Sides = tuple[int, int]  # height, width


class CostTerm(NamedTuple):
    """The cost of a piece of a model; pieces add up."""

    parameters: int = 0
    macs: int = 0
    activations: int = 0
    statistics: int = 0
    kernels: int = 0
    padding_macs: int = 0


def conv_body(conv: ConvConfig, channels: int, image: Sides) -> Iterator[CostTerm]:
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
