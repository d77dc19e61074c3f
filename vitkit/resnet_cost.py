"""The cost of a ResNet's root and stages in closed form.

Symbols as in the model: h x w feature map, N = h·w, C channels, H heads, K neighbours.
"""

from collections.abc import Iterator

from vitkit.cost_term import CostTerm
from vitkit.model.conv_config import ConvConfig
from vitkit.model.options import GROUPS
from vitkit.model.spatial_attention import SpatialAttention, takes_all_pairs

Sides = tuple[int, int]  # height, width


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
            yield from _unit(conv, inputs, stage, size, stride, projected=unit == 0)
            size = _halve(size) if stride == 2 else size
            inputs = 4 * middle
    if conv.preactivation:
        yield _group_norm(inputs, size)
    if conv.preactivation or conv.layers:
        yield CostTerm(activations=inputs * _area(size))  # the last ReLU's output


def _unit(
    conv: ConvConfig, inputs: int, stage: int, before: Sides, stride: int, *, projected: bool
) -> Iterator[CostTerm]:
    """A bottleneck; `before` is the size in front of its stride."""
    middle, attention = conv.width * 2**stage, conv.attention_in(stage)
    outputs, after = 4 * middle, _halve(before) if stride == 2 else before
    normed = (
        ((inputs, before), (middle, before), (middle, after))
        if conv.preactivation
        else ((middle, before), (middle, after), (outputs, after))
    )
    for channels, size in normed:
        yield _group_norm(channels, size)
    yield _conv(conv, inputs, middle, 1, before)
    convolved = middle  # channels that the 3x3 convolution puts out
    if attention is not None:
        smaller = attention.pools(stage, len(conv.layers))
        yield from _attention(attention, middle, before, (stride == 2) + smaller, pooled_after=stride == 2)
        convolved = middle - attention.channels(middle)[1]
    if convolved:  # by attention alone, none
        yield _conv(conv, middle, convolved, 3, before, stride)
    yield _conv(conv, middle, outputs, 1, after)
    if projected:
        # its input is the first convolution's
        yield _conv(conv, inputs, outputs, 1, before, stride)._replace(activations=0)
        if not conv.preactivation:
            yield _group_norm(outputs, after)
    if not conv.preactivation and before != after and convolved:
        yield CostTerm(activations=middle * _area(before))  # SAME padding at a stride copies the input


def _attention(
    attention: SpatialAttention, C: int, before: Sides, poolings: int, *, pooled_after: bool
) -> Iterator[CostTerm]:
    """Attention in place of, or beside, a 3x3 convolution: it keeps copies of its input and of q, k, v, and weights."""
    key, value = attention.channels(C)
    H, N, last = attention.heads, _area(before), C * _area(before) * pooled_after  # pooling keeps its input
    if attention.kind == "local" and takes_all_pairs(N, attention.window):
        offsets = 2 * before[0] + 2 * before[1] - 2
        macs = N * (3 * C * C + offsets * C // 2 + 2 * N * C)
        yield CostTerm(3 * C * C + attention.window * C, macs, 8 * N * C + H * N * N + last)
    elif attention.kind == "local":
        K = attention.window**2
        kept = 4 * N * C + 2 * N * C * K + H * N * K + last  # and the output of ReLU
        yield CostTerm(3 * C * C + attention.window * C, N * 3 * C * (C + K), kept, kernels=K * C)
    elif attention.kind == "axial":
        yield CostTerm(activations=N * C + last)
        for side in before:
            offsets = 2 * side - 1  # each with a vector for a head's query, one for its key and one for its value
            yield CostTerm(
                2 * C * C + offsets * 2 * C // H,
                N * (2 * C * C + side * (3 * key + 2 * value)),
                4 * N * C + H * N * side,
                kernels=2 * side * side * C // H,
            )
    elif attention.kind == "bottleneck":
        yield CostTerm(activations=N * C + last)
        yield _all_to_all(C, key, value, H, before)
    else:
        size = before
        for pooling in range(poolings):
            yield CostTerm(activations=C * _area(size) * (pooling > 0))  # the first one's input is the convolution's
            size = _halve(size)
        yield _all_to_all(C, key, value, H, size)
        yield CostTerm(value * value, _area(size) * value * value, _area(size) * value)  # output projection


def _all_to_all(C: int, key: int, value: int, H: int, size: Sides) -> CostTerm:
    """Attention between all pixels of a map, with a vector for each offset between rows, and between columns."""
    N, offsets = _area(size), 2 * size[0] + 2 * size[1] - 2
    return CostTerm(
        C * (2 * key + value) + offsets * key // H,
        N * (C * (2 * key + value) + offsets * key + N * (key + value)),
        N * C + N * (4 * key + value) + H * N * N,
    )


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
