"""BiT against transformers' implementation of it, live; the hybrid's stem against Flax through its fixture."""

from __future__ import annotations

import pytest
import torch
from transformers import BitConfig, BitForImageClassification

import vitkit
from tests.model.kinds import randomise
from vitkit.model.config import ResNetConfig
from vitkit.model.conv_config import ConvConfig
from vitkit.model.resnet import ResNet, standardise


@pytest.mark.parametrize(("layers", "width"), [((1, 1, 1, 1), 32), ((2, 1, 3, 1), 32), ((1, 2, 1, 2), 64)])
def test_logits_equal_transformers_bit(layers: tuple[int, ...], width: int):
    body = ConvConfig(
        layers=layers, width=width, preactivation=True, standardise_eps=1e-6, standardise_on="variance", norm_eps=1e-5
    )
    ours = randomise(ResNet(ResNetConfig(body=body, classes=7))).eval()
    theirs = BitForImageClassification(
        BitConfig(
            embedding_size=width,
            hidden_sizes=[4 * width * 2**stage for stage in range(4)],
            depths=list(layers),
            layer_type="preactivation",
            num_labels=7,
        )
    ).eval()
    theirs.load_state_dict({_theirs(name): value for name, value in ours.state_dict().items()})
    for module in theirs.modules():
        if hasattr(module, "eps") and type(module).__name__ == "WeightStandardizedConv2d":
            module.eps = 1e-6
    images = torch.randn(2, 3, 70, 96)
    torch.testing.assert_close(ours(images), theirs(images).logits, atol=1e-4, rtol=1e-4)


def _theirs(name: str) -> str:
    name = name.replace("body.root.weight", "bit.embedder.convolution.weight").replace("body.norm.", "bit.norm.")
    name = name.replace("head.logits.", "classifier.1.").replace(".project.", ".downsample.conv.")
    if name.startswith("body.stages."):
        _, _, stage, unit, rest = name.split(".", 4)
        name = f"bit.encoder.stages.{stage}.layers.{unit}.{rest}"
    return name


def test_standardised_kernels_have_zero_mean_and_unit_deviation():
    weight = torch.randn(8, 5, 3, 3) * 3 + 2
    for on in ("std", "variance"):
        kernel = standardise(weight, ConvConfig(layers=(), standardise_on=on))
        torch.testing.assert_close(kernel.mean((1, 2, 3)), torch.zeros(8), atol=1e-5, rtol=0)
        torch.testing.assert_close(kernel.std((1, 2, 3), unbiased=False), torch.ones(8), atol=1e-4, rtol=0)


def test_captured_stages_halve_the_map_and_double_the_channels():
    model = vitkit.create("R50x1", classes=5, image=64).eval()
    _, seen = model(torch.randn(1, 3, 64, 64), capture=("*",))
    shapes = [tuple(seen[name].shape[1:]) for name in ("root", "stage0", "stage1", "stage2", "stage3", "features")]
    assert shapes == [(64, 16, 16), (256, 16, 16), (512, 8, 8), (1024, 4, 4), (2048, 2, 2), (2048, 2, 2)]
