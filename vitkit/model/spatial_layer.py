"""The layer of a ResNet's unit that mixes pixels: the 3x3 convolution, or the attention that replaces it."""

from collections.abc import Callable

from torch import nn

from vitkit.model.augmented_conv import AugmentedConv
from vitkit.model.axial_attention import AxialAttention
from vitkit.model.bottleneck_attention import BottleneckAttention
from vitkit.model.conv_config import ConvConfig
from vitkit.model.local_attention import LocalAttention
from vitkit.model.resize_positions import Grid


def build_spatial(
    config: ConvConfig, stage: int, stride: int, image: tuple[int, int], convolution: Callable[[int], nn.Module]
) -> nn.Module:
    """Return the layer of a unit; `convolution` builds one with so many output channels."""
    width, attention = config.width * 2**stage, config.attention_in(stage)
    if attention is None:
        return convolution(width)
    grid = attention_grid(config, stage, stride, image)
    if attention.kind == "augmented":
        channels = attention.channels(width)
        poolings = (stride == 2) + attention.pools(stage, len(config.layers))
        return AugmentedConv(
            convolution(width - channels[1]),
            width=width,
            channels=channels,
            heads=attention.heads,
            grid=grid,
            poolings=poolings,
        )
    if attention.kind == "local":
        return LocalAttention(width=width, heads=attention.heads, grid=grid, stride=stride, window=attention.window)
    kind = BottleneckAttention if attention.kind == "bottleneck" else AxialAttention
    return kind(width=width, heads=attention.heads, grid=grid, stride=stride)


def attention_grid(config: ConvConfig, stage: int, stride: int, image: tuple[int, int]) -> Grid:
    """Return the rows and columns that the attention of a unit runs over.

    They are those in front of its stride; an augmented convolution's attention comes behind it, and pools more.
    """
    attention = config.attention_in(stage)
    assert attention is not None
    if attention.kind == "augmented":
        return config.grid(image, stage + attention.pools(stage, len(config.layers)))
    return config.grid(image, stage - (stride == 2))
