"""Attention by layer, head and token, compared with transformers' eager attention, and rollout with plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from transformers import ViTConfig, ViTForImageClassification

import vitkit
from tests.inspect import reference
from tests.model.kinds import KINDS, images_for, make, randomise
from tests.weights.test_huggingface import configurations
from vitkit.errors import ConfigError, SizeError
from vitkit.inspect import inference
from vitkit.inspect.attention import attention_layers, attention_maps, visit_attention
from vitkit.inspect.dense import dense_features
from vitkit.inspect.distance import attention_distance
from vitkit.inspect.inference import DoesNotApply
from vitkit.inspect.relevance import relevance
from vitkit.inspect.rollout import rollout

TRANSFORMERS = [kind for kind in KINDS if kind not in ("ResNet", "hybrid")]  # a longer stem changes nothing here


def all_attention(model, images: torch.Tensor) -> list[np.ndarray]:
    """Return all attention weights through plain captures: (B, H, T, T) for each layer; axial ones patch by patch."""
    _, captured = model(images, capture=("block*attention",))
    h, w = model.config.grid
    layers = []
    if model.config.induced:
        for block in range(model.config.depth):
            gathered = captured[f"block{block}/inducing/attention"].detach().double().numpy()
            read = captured[f"block{block}/tokens/attention"].detach().double().numpy()
            layers.append(np.einsum("bhtm,bgms->bhts", read, gathered) / model.config.heads)
        return layers
    for name, weights in captured.items():
        weights = weights.detach().double().numpy()
        if model.config.axial:
            full = np.zeros((len(images), model.config.heads, h * w, h * w))
            for query in range(h * w):
                for key in range(h * w):
                    (row, column), (to_row, to_column) = divmod(query, w), divmod(key, w)
                    if "rows" in name and row == to_row:
                        full[:, :, query, key] = weights[:, row, :, column, to_column]
                    if "columns" in name and column == to_column:
                        full[:, :, query, key] = weights[:, column, :, row, to_row]
            weights = full
        layers.append(weights)
    return layers


@given(configurations())
@settings(max_examples=10)
def test_maps_of_the_class_token_are_those_of_transformers(tmp_path_factory, config: ViTConfig):
    theirs = randomise(ViTForImageClassification(config).eval())
    folder = tmp_path_factory.mktemp("hf")
    theirs.save_pretrained(folder)
    ours = vitkit.load(folder)
    images = images_for(ours)
    maps = attention_maps(ours, images)
    eager = torch.stack(theirs(images, output_attentions=True).attentions, dim=1).detach()  # (B, L, H, T, T)
    np.testing.assert_allclose(
        maps, eager[:, :, :, 0, 1:].unflatten(-1, ours.config.grid), atol=16 * reference.EPS, rtol=0
    )
    row, column = ours.config.grid[0] - 1, 0
    maps = attention_maps(ours, images, token=(row, column), layers=[0], heads=[config.num_attention_heads - 1])
    expected = eager[:, :1, -1:, 1 + row * ours.config.grid[1] + column, 1:].unflatten(-1, ours.config.grid)
    np.testing.assert_allclose(maps, expected, atol=16 * reference.EPS, rtol=0)


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_maps_are_rows_of_the_captured_attention(kind: str):
    model = make(kind)
    images = images_for(model, 3)
    first = model.config.tokens - model.config.patches
    captured = np.stack(all_attention(model, images), axis=1)  # (B, L, H, T, T)
    h, w = model.config.grid
    for token, expected in (
        ((h - 1, 0), captured[..., first + (h - 1) * w, first:]),
        ("mean", captured[..., first:, first:].mean(axis=-2)),
    ):
        maps = attention_maps(model, images, token=token)
        assert maps.shape == (3, len(attention_layers(model)), model.config.heads, h, w)
        np.testing.assert_allclose(maps, expected.reshape(maps.shape), atol=16 * reference.EPS)


@pytest.mark.parametrize("identity", [True, False])
@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_rollout_equals_plain_numpy(kind: str, identity: bool, monkeypatch: pytest.MonkeyPatch):
    model = make(kind)
    images = images_for(model, 3)
    monkeypatch.setattr(inference, "MAX_BATCH", 2)  # two batches
    first = model.config.tokens - model.config.patches
    layers = all_attention(model, images)
    for index, rolled in enumerate(rollout(model, images, identity=identity)):
        expected = reference.rollout([weights[index] for weights in layers], identity)
        row = expected[0] if "token" in model.config.pool else expected[first:].mean(axis=0)
        np.testing.assert_allclose(rolled, row[first:].reshape(model.config.grid), atol=16 * reference.EPS)


def test_one_forward_pass_serves_all_layers_and_holds_the_weights_of_one_at_a_time(monkeypatch: pytest.MonkeyPatch):
    model = vitkit.create("mu/8", image=32, depth=6, classes=0).eval()
    passes, held = [], []
    embed = model.embed
    monkeypatch.setattr(model, "embed", lambda images, seen: (passes.append(seen), embed(images, seen))[1])

    def visit(index: int, weights: torch.Tensor) -> None:
        held.append([name for name, value in passes[-1].items() if value is not None])

    visit_attention(model, torch.randn(2, 3, 32, 32), visit)
    assert len(passes) == 1
    assert held == [[f"block{layer}/attention"] for layer in range(6)]


def test_analyses_leave_the_logits_unchanged():
    model = make("token")
    images = images_for(model)
    before = model(images)
    rollout(model, images)
    attention_maps(model, images)
    assert torch.equal(model(images), before)


@pytest.mark.parametrize("analysis", [attention_maps, rollout])
def test_a_float64_model_can_be_analysed(analysis):
    model = make("token")
    images = images_for(model)
    result = analysis(model.double(), images.double())
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, analysis(model.float(), images), atol=16 * reference.EPS)


@pytest.mark.parametrize(
    "analysis", [attention_maps, rollout, lambda *args: attention_distance(*args).per_image, dense_features]
)
def test_a_model_in_training_is_analysed_without_dropout_and_stays_in_training(analysis):
    model = randomise(vitkit.create("mu/8", image=32, classes=10, dropout=0.5, stochastic_depth=0.5))
    model.encoder.eval()  # a frozen module
    model.encoder.blocks[0].train()
    images = images_for(model)
    before = {name: module.training for name, module in model.named_modules()}
    result = analysis(model, images)
    assert {name: module.training for name, module in model.named_modules()} == before
    np.testing.assert_allclose(result, analysis(model.eval(), images), atol=16 * reference.EPS)


@pytest.mark.parametrize("analysis", [attention_maps, rollout, attention_distance, relevance, dense_features])
@pytest.mark.parametrize("shape", [(2, 1, 40, 16), (2, 1, 16, 48), (2, 3, 16, 40), (1, 16, 40)])
def test_images_of_another_size_are_refused(analysis, shape: tuple[int, ...]):
    """An image turned on its side has as many patches, so that its map would be silently wrong."""
    with pytest.raises(SizeError, match="images"):
        analysis(make("non-square, one channel"), torch.randn(shape))


def test_an_unknown_token_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ConfigError, match="no token 'cls'\n  try  class, mean"):
        attention_maps(make("token"), torch.randn(1, 3, 32, 32), token="cls")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [2]}, "there is no layer 2\n  layers  0 to 1"),
        ({"heads": [-1]}, "there is no head -1"),
        ({"token": (4, 0)}, "no patch at row 4, column 0\n  grid  4 rows, 4 columns"),
    ],
)
def test_unknown_layers_heads_and_patches_are_errors_that_give_the_range(options: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        attention_maps(make("token"), torch.randn(1, 3, 32, 32), **options)


def test_models_without_a_class_token_or_attention_are_declined():
    with pytest.raises(ConfigError, match="no class token"):
        attention_maps(make("gap"), torch.randn(1, 3, 32, 32), token="class")
    with torch.device("meta"):  # its weights would take seconds to initialise
        resnet = vitkit.create("R50x1")
    with pytest.raises(DoesNotApply, match="attention rollout: a ResNet has no tokens"):
        rollout(resnet, torch.randn(1, 3, 64, 64))
