"""Draw cnn-attention.png: the pixels that reach one output pixel of each layer: python docs/related/picture.py."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import torch
from torch import Tensor, nn

from vitkit.model.augmented_conv import AugmentedConv
from vitkit.model.axial_attention import AxialAttention
from vitkit.model.bottleneck_attention import BottleneckAttention
from vitkit.model.conv_config import ConvConfig
from vitkit.model.feature_map_attention import FeatureMapAttention
from vitkit.model.local_attention import LocalAttention
from vitkit.model.resnet import StandardisedConv

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SIDE, WIDTH, QUERY = 14, 32, (5, 8)


def layers() -> dict[str, nn.Module]:
    """Return a layer of each kind under the title of its picture."""
    grid, config = (SIDE, SIDE), ConvConfig(layers=())
    shared = {"width": WIDTH, "heads": 4, "grid": grid, "stride": 1}
    beside = StandardisedConv(config, WIDTH, WIDTH - 4, 3)
    augmented = AugmentedConv(beside, width=WIDTH, channels=(32, 4), heads=4, grid=grid, poolings=0)
    return {
        "3x3 convolution\n(BiT, R50x1)": StandardisedConv(config, WIDTH, WIDTH, 3),
        "augmented convolution\n(AA-R50)": augmented,
        "bottleneck attention\n(BoT50)": BottleneckAttention(**shared),
        "local attention, 7x7\n(SASA-R50)": LocalAttention(**shared, window=7),
        "axial: columns, then rows\n(Axial-R50)": AxialAttention(**shared),
    }


def influence(layer: nn.Module) -> Tensor:
    """Return the gradient of one output pixel by each input pixel, its size relative to the largest: (h, w)."""
    torch.manual_seed(0)
    image = torch.randn(8, WIDTH, SIDE, SIDE, requires_grad=True)
    output = layer(image, {}, "") if isinstance(layer, FeatureMapAttention) else layer(image)
    output[:, :, *QUERY].square().sum().backward()
    assert image.grad is not None
    size = image.grad.square().sum((0, 1)).sqrt()
    return size / size.max()


def main() -> None:
    figure, panels = plt.subplots(1, 5, figsize=(13, 3.1), layout="constrained")
    for axes, (title, layer) in zip(panels, layers().items(), strict=True):
        size = influence(layer)
        # a logarithm: the pixel itself, and the convolution beside attention, weigh far more than the others
        axes.imshow(torch.where(size > 0, 3 + size.clamp(min=1e-3).log10(), torch.nan), cmap="viridis", vmin=0, vmax=3)
        axes.add_patch(plt.Rectangle((QUERY[1] - 0.5, QUERY[0] - 0.5), 1, 1, fill=False, edgecolor="red", linewidth=2))
        axes.set_title(title, fontsize=11)
        axes.set_xticks(torch.arange(-0.5, SIDE).tolist(), [])
        axes.set_yticks(torch.arange(-0.5, SIDE).tolist(), [])
        axes.tick_params(length=0)
        axes.grid(color="0.85", linewidth=0.5)
    figure.savefig(Path(__file__).with_name("cnn-attention.png"), dpi=100)


if __name__ == "__main__":
    main()
