"""Whole models against the paper's equations written out; captured, compiled, exported, and fed invalid input."""

from __future__ import annotations

import pytest
import torch

import vitkit
from tests.model import reference
from tests.model.kinds import DISTINCT_FIRST, KINDS, images_for, make
from vitkit.errors import ConfigError, SizeError
from vitkit.model.attention import SelfAttention
from vitkit.model.config import ViTConfig

PURE = [kind for kind in KINDS if "hybrid" not in kind and kind != "ResNet"]


@pytest.mark.parametrize("kind", PURE)
def test_logits_equal_the_equations_written_out(kind: str):
    model = make(kind).double()
    images = images_for(model).double()
    theirs = torch.stack([reference.forward(model.state_dict(), model.config, image) for image in images])
    tolerance = 1e-10 if model.config.rotary == "none" else 1e-5  # tables of angles up to 2π are float32
    torch.testing.assert_close(model(images), theirs, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_capturing_everything_leaves_the_logits_as_they_are(kind: str):
    model = make(kind)
    images = images_for(model)
    logits, seen = model(images, capture=("*",))
    torch.testing.assert_close(logits, model(images))
    assert tuple(seen) == model.captures
    assert all(isinstance(value, torch.Tensor) and len(value) == 2 for value in seen.values())


def test_captured_names_mean_what_they_say():
    model = make("representation")
    config, images = model.config, images_for(model)
    _, seen = model(images, capture=("patches", "tokens", "block0", "block1", "encoded", "representation"))
    table = model.encoder.positions[0].table
    tokens = torch.cat([model.class_token.expand(2, 1, -1), seen["patches"]], dim=1) + table
    torch.testing.assert_close(seen["tokens"], tokens)
    torch.testing.assert_close(model.encoder.norm(seen["block1"]), seen["encoded"])
    torch.testing.assert_close(model.head.represent(seen["encoded"][:, 0]), seen["representation"])
    assert seen["block0"].shape == (2, config.tokens, config.width)
    assert seen["representation"].shape == (2, 24)


@pytest.mark.parametrize(
    "kind", ["token", "relative", "axial", "hybrid", "relative-2d alone, gap", "inducing points, two seeds"]
)
def test_captured_attention_sums_to_one(kind: str):
    model = make(kind)
    _, seen = model(images_for(model), capture=("block*/attention",))
    assert len(seen) == (4 if kind == "axial" or "inducing" in kind else 2)
    for weights in seen.values():
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


def test_nothing_is_computed_for_captures_that_nobody_asked_for(monkeypatch: pytest.MonkeyPatch):
    model = make("token")
    calls = []
    original = SelfAttention.weights
    monkeypatch.setattr(SelfAttention, "weights", lambda self, *rest: calls.append(self) or original(self, *rest))
    model(images_for(model))
    model(images_for(model), capture=("representation", "block0"))
    assert not calls
    model(images_for(model), capture=("block1/attention",))
    assert calls == [model.encoder.blocks[1].attention]


def test_an_unknown_capture_suggests_the_nearest():
    model = make("token")
    with pytest.raises(ConfigError, match="named 'blok1'; did you mean block1"):
        model(images_for(model), capture=("blok1",))
    with pytest.raises(ConfigError, match="one string"):
        model(images_for(model), capture="block1")


@pytest.mark.parametrize("kind", DISTINCT_FIRST)
def test_compiles_as_one_graph(kind: str):
    model = make(kind)
    images = images_for(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), model(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["token", "relative", "axial"])
def test_compiles_as_one_graph_with_captures(kind: str):
    model = make(kind)
    images = images_for(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    _, seen = compiled(images, capture=("block1*", "representation"))
    _, plain = model(images, capture=("block1*", "representation"))
    assert seen.keys() == plain.keys()
    for name in plain:
        torch.testing.assert_close(seen[name], plain[name], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", DISTINCT_FIRST)
def test_trains_compiled_with_dropout_and_stochastic_depth(kind: str):
    name, options = KINDS[kind]
    if name != "R50x1":
        options = {**options, "dropout": 0.1, "stochastic_depth": 0.1}
    model = vitkit.create(name, **{"classes": 10, **options}).train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    compiled(images_for(model)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("kind", DISTINCT_FIRST)
def test_exports_with_any_batch(kind: str):
    model = make(kind)
    program = torch.export.export(model, (images_for(model),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    images = images_for(model, batch=3)
    torch.testing.assert_close(program.module()(images), model(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_gets_a_gradient(kind: str):
    model = make(kind)
    model(images_for(model)).square().sum().backward()
    lost = [name for name, parameter in model.named_parameters() if not parameter.grad.abs().sum() > 0]
    assert not lost


@pytest.mark.parametrize("kind", ["token", "axial", "relative", "attention pool", "hybrid", "ResNet"])
def test_images_in_a_batch_do_not_affect_each_other(kind: str):
    model = make(kind)
    images = images_for(model, batch=3)
    torch.testing.assert_close(model(images)[1:2], model(images[1:2]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3, 32, 40), "images are 32 x 40, the model is for 32 x 32"),
        ((2, 3, 33, 33), "images are 33 x 33"),
        ((2, 4, 32, 32), "images have 4 channels, the model takes 3"),
        ((2, 32, 32, 3), "images have 32 channels"),
        ((3, 32, 32), r"images have the shape \(3, 32, 32\)"),
    ],
)
def test_images_of_the_wrong_shape_are_refused(shape: tuple[int, ...], message: str):
    with pytest.raises(SizeError, match=message):
        make("token")(torch.randn(shape))


def test_raw_bytes_are_refused_with_the_scaling_they_lack():
    with pytest.raises(SizeError, match="takes preprocessed floats"):
        make("token")(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))


def test_a_resnet_takes_any_image_size():
    model = make("ResNet")
    assert model(torch.randn(1, 3, 96, 70)).shape == (1, 10)


def test_fine_tuning_starts_from_a_zero_linear_head():
    model = make("representation")
    features = model.encoder.state_dict()
    model.replace_head(37)
    assert torch.equal(model(images_for(model)), torch.zeros(2, 37))
    assert isinstance(model.config, ViTConfig)
    assert (model.config.classes, model.config.representation) == (37, None)
    assert [name for name, _ in model.head.named_parameters()] == ["logits.weight", "logits.bias"]
    for name, value in model.encoder.state_dict().items():
        assert torch.equal(value, features[name])


def test_without_classes_the_representation_comes_out():
    model = make("no head")
    images = images_for(model)
    output, seen = model(images, capture=("representation",))
    assert torch.equal(output, seen["representation"])


def test_a_fresh_model_starts_as_googles_does():
    model = vitkit.create("S/16", classes=10, image=64)
    state = model.state_dict()
    assert not state["head.logits.weight"].any()
    assert not state["class_token"].any()
    assert state["encoder.positions.0.table"].std().item() == pytest.approx(0.02, rel=0.05)
    assert state["encoder.blocks.0.mlp.up.bias"].std().item() == pytest.approx(1e-6, rel=0.1)
    bound = (6 / (384 + 384)) ** 0.5  # Xavier-uniform for query, key and value each, not for the fused matrix
    assert state["encoder.blocks.0.attention.qkv.weight"].abs().max().item() == pytest.approx(bound, rel=0.01)
    assert state["encoder.blocks.0.attention.qkv.weight"].std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
    assert state["patches.project.weight"].std().item() == pytest.approx((1 / 768) ** 0.5, rel=0.02)
