"""ResNets with attention: parameters of the papers' tables, names, options and other image sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import vitkit
from tests.model.kinds import RESNETS_WITH_ATTENTION, images_for, make, randomise
from vitkit.cost import cost
from vitkit.errors import ConfigError, SizeError
from vitkit.model.axial_attention import AxialAttention
from vitkit.model.spatial_attention import SpatialAttention
from vitkit.model.variants import configure, name_of


def parameters(name: str, image: int = 224, **options: object) -> int:
    return cost(configure(name, image=image, **options)).parameters  # equal to the model's: tests/test_cost.py


def test_parameters_are_those_of_the_papers_tables():
    # torchvision's resnet50: BatchNorm has the two parameters per channel that group normalisation has
    assert parameters("R50x1", body={"preactivation": False}) == 25_557_032
    # BoTNet, Table 1 counts 25.5M and 20.8M, rounded down: without the offsets, 20,838,440
    bot, offsets = parameters("BoT50"), 128 * sum(2 * (2 * side - 1) for side in (14, 7, 7))
    assert bot == 25_557_032 - 3 * (9 * 512**2 - 3 * 512**2) + offsets == 20_852_008
    assert bot // 100_000 == (bot - offsets) // 100_000 == 208
    # Ramachandran et al., Table 1: ResNet-50 with a convolutional stem and attention, 18.0M
    assert f"{parameters('SASA-R50') / 1e6:.1f}" == "18.0"
    # Bello et al.: AA-ResNet-50, 25.8M
    assert f"{parameters('AA-R50') / 1e6:.1f}" == "25.8"


def test_multiply_adds_of_botnet_at_1024_px_are_those_of_its_table_1():
    assert cost(configure("R50x1", image=1024, body={"preactivation": False})).macs == pytest.approx(85.4e9, rel=2e-3)
    assert cost(configure("BoT50", image=1024)).macs == pytest.approx(102.98e9, rel=2e-3)


def test_an_axial_layer_has_the_parameters_of_axial_deeplabs_code():
    """`AxialAttention` in csrhddlam/axial-deeplab: qkv of twice the width; `relative`, (2 · width / heads, 2·T - 1)."""
    layer = AxialAttention(width=64, heads=8, grid=(56, 28), stride=1)
    for line, side in ((layer.column, 56), (layer.row, 28)):
        assert sum(one.numel() for one in line.parameters()) == 2 * 64 * 64 + 2 * 8 * (2 * side - 1)


@pytest.mark.parametrize("name", ["BoT50", "BoT101", "AA-R50", "AA-R152", "SASA-R50", "Axial-R50"])
def test_a_name_leads_to_a_model_and_back(name: str):
    config = configure(name)
    assert name_of(config) == name
    assert not config.body.preactivation
    assert name_of(configure(name, body={"width": 32})) is None


def test_a_kind_in_the_options_of_a_resnet_is_that_of_the_named_model():
    by_kind = {"bottleneck": "BoT50", "augmented": "AA-R50", "local": "SASA-R50", "axial": "Axial-R50"}
    for kind, name in by_kind.items():
        named = configure(name).body
        assert configure("R50x1", body={"attention": kind, "preactivation": False}).body.attention == named.attention
        assert configure("R50x1", body={"attention": {"kind": kind}}).body.attention == named.attention
        fewer = configure(name, body={"attention": {"heads": 2}}).body.attention
        assert fewer == SpatialAttention(kind=kind, heads=2, stages=named.attention.stages)
    assert configure("BoT50", body={"attention": False}).body.attention is None


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("R50x1", {"attention": "global"}, "choose_from|bottleneck"),
        ("BoT50", {"attention": {"window": 5}}, "no effect"),
        ("BoT50", {"attention": {"haeds": 5}}, "heads"),
        ("BoT50", {"attention": {"heads": 3}}, "3 heads"),
        ("SASA-R50", {"attention": {"window": 4}}, "odd"),
        ("AA-R50", {"attention": {"value_share": 1.0}}, "between 0 and 1"),
        ("AA-R50", {"attention": {"heads": 64, "stages": 4}}, "wider"),
        ("Axial-R50", {"attention": {"stages": 0}}, "1 or more"),
    ],
)
def test_a_bad_option_is_an_error_that_names_it(name: str, body: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        configure(name, body=body)
    with pytest.raises(ConfigError, match="hybrid"):
        configure("R50+B/16", stem={"attention": "bottleneck"})


@pytest.mark.parametrize("kind", RESNETS_WITH_ATTENTION)
def test_at_another_image_size_offsets_are_interpolated(kind: str):
    model = make(kind).double()
    images = images_for(model).double()
    before = model(images)
    with pytest.raises(SizeError, match="resize"):
        model(torch.randn(1, 3, 96, 96).double())
    side = model.config.image
    model.resize(side)
    assert torch.equal(model(images), before)
    tables = {name: value.clone() for name, value in model.named_parameters()}
    model.resize((side[0] * 3, side[1] * 3))
    assert model(torch.randn(1, 3, *model.config.image).double()).isfinite().all()
    for name, table in model.named_parameters():
        old = tables[name]
        if table.shape == old.shape:
            assert torch.equal(table, old)
            continue
        # scipy's zoom of order 1, as the paper's code resizes positions
        places = np.linspace(0, len(old) - 1, len(table))
        expected = [np.interp(places, np.arange(len(old)), column) for column in old.detach().numpy().T]
        np.testing.assert_allclose(table.detach().numpy().T, expected, atol=1e-12)


def test_fresh_positions_are_drawn_anew_and_a_plain_resnet_has_none():
    model = make("axial ResNet")
    tables = {name: value.clone() for name, value in model.named_parameters() if "positions" in name}
    model.resize(model.config.image, positions="fresh")
    assert tables
    assert not any(torch.equal(model.get_parameter(name), old) for name, old in tables.items())
    with pytest.raises(SizeError, match="kept"):
        model.resize(128, positions="keep")
    with pytest.raises(ConfigError, match="no positions"):
        make("ResNet").resize(64, positions="fresh")


@pytest.mark.parametrize("kind", RESNETS_WITH_ATTENTION)
def test_every_parameter_gets_a_gradient(kind: str):
    model = make(kind)
    model(images_for(model)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_batch_order_and_weights_of_one_image_do_not_leak_into_another():
    model = randomise(vitkit.create("AA-R50", classes=4, image=32, body={"width": 32, "layers": (1, 1)})).eval()
    images = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(model(images)[1:], model(images[1:]), atol=1e-5, rtol=1e-5)
