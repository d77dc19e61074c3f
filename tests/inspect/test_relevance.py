"""Relevance, compared with a reference forward pass that retains the gradients of attention."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.inspect.reference import EPS
from tests.model import reference as plain
from tests.model.kinds import KINDS, OTHER_ATTENTION, images_for, make
from vitkit.errors import ConfigError
from vitkit.inspect.inference import DoesNotApply
from vitkit.inspect.relevance import relevance, with_explicit_attention
from vitkit.model.attention import SelfAttention
from vitkit.model.config import ViTConfig

CLASSIFIERS = [kind for kind in KINDS if kind not in ("ResNet", "hybrid", "no head", *OTHER_ATTENTION)]
PLAIN = [kind for kind in CLASSIFIERS if "hybrid" not in kind and kind != "axial" and "relative" not in kind]


def expected(model, image: torch.Tensor, target: int, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Chefer et al. with retained gradients, in a forward pass that shares no code with the model."""
    collected: list[list[torch.Tensor]] = []

    def attention(state, config, name, x, offsets):
        d = x.shape[1] // config.heads
        q, k, v = plain.project(state, config, name, x)
        collected.append([])
        mixed = []
        for head in range(config.heads):
            columns = slice(head * d, (head + 1) * d)
            weights = torch.softmax(q[:, columns] @ k[:, columns].T / math.sqrt(d), dim=1)
            weights.retain_grad()
            collected[-1].append(weights)
            mixed.append(weights @ v[:, columns])
        return plain.linear(state, f"{name}.out", torch.cat(mixed, dim=1))

    monkeypatch.setattr(plain, "attention", attention)
    state = {name: value.double().requires_grad_() for name, value in model.state_dict().items()}
    plain.forward(state, model.config, image.double())[target].backward()
    tokens = model.config.tokens
    rolled = np.eye(tokens)
    for layer in collected:
        step = np.mean([(w * w.grad).clamp(min=0).detach().numpy() for w in layer], axis=0)
        rolled = rolled + step @ rolled
    first = model.config.tokens - model.config.patches
    rolled = rolled - np.eye(tokens)
    row = rolled[0] if "token" in model.config.pool else rolled[first:].mean(axis=0)
    return row[first:].reshape(model.config.grid)


@pytest.mark.parametrize("kind", PLAIN)
def test_relevance_equals_retained_gradients(kind: str, monkeypatch: pytest.MonkeyPatch):
    model = make(kind)
    images = images_for(model)
    result = relevance(model, images, classes=[3, 7])
    for index, target in enumerate([3, 7]):
        map_ = expected(model, images[index], target, monkeypatch)
        assert map_.max() > 0
        np.testing.assert_allclose(result.maps[index], map_, rtol=8192 * EPS, atol=128 * EPS * map_.max())


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_the_copy_with_explicit_attention_has_the_same_logits_and_shares_the_weights(kind: str):
    model = make(kind)
    images = images_for(model)
    explicit, collected = with_explicit_attention(model)
    torch.testing.assert_close(explicit(images), model(images), atol=128 * EPS, rtol=128 * EPS)
    assert {one.data_ptr() for one in explicit.parameters()} == {one.data_ptr() for one in model.parameters()}
    assert not any(one.requires_grad for one in explicit.parameters())
    assert len(collected) == model.config.depth * (1 + model.config.axial)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_the_predicted_class_is_the_default_and_the_model_stays_unchanged(kind: str):
    model = make(kind)
    images = images_for(model, 3)
    logits = model(images)
    result = relevance(model, images)
    assert result.classes.tolist() == logits.argmax(1).tolist()
    np.testing.assert_allclose(result.probabilities, logits.softmax(1).max(1).values.detach(), atol=128 * EPS)
    assert result.maps.shape == (3, *model.config.grid)
    assert (result.maps >= 0).all()
    assert all(one.grad is None for one in model.parameters())
    assert all(one.requires_grad for one in model.parameters())
    assert torch.equal(model(images), logits)


def test_relevance_works_in_inference_mode_in_float64_and_for_an_empty_batch():
    model = make("token")
    images = images_for(model)
    result = relevance(model, images)
    with torch.inference_mode():
        np.testing.assert_allclose(relevance(model, images).maps, result.maps, rtol=1024 * EPS, atol=EPS)
        np.testing.assert_allclose(relevance(model, images * 1).maps, result.maps, rtol=1024 * EPS, atol=EPS)
    assert relevance(model, images[:0]).maps.shape == (0, *model.config.grid)
    double = relevance(model.double(), images.double())
    assert double.maps.dtype == double.probabilities.dtype == np.float32
    np.testing.assert_allclose(double.maps, result.maps, rtol=8192 * EPS, atol=16 * EPS)


def test_images_of_a_batch_are_independent():
    model = make("token")
    images = images_for(model, 4)
    together = relevance(model, images, classes=2).maps
    alone = [relevance(model, image[None], classes=2).maps[0] for image in images]
    np.testing.assert_allclose(together, alone, rtol=1024 * EPS, atol=EPS)


def test_axial_relevance_reaches_every_patch_through_its_row_and_column():
    model = make("axial")
    result = relevance(model, images_for(model), token=(0, 0))
    assert np.count_nonzero(result.maps[0]) > model.config.grid[0] + model.config.grid[1]


def test_a_model_without_classes_and_unknown_classes_are_declined():
    with pytest.raises(DoesNotApply, match="no classes"):
        relevance(make("no head"), torch.randn(1, 3, 32, 32))
    with pytest.raises(ConfigError, match="3 classes for 2 images"):
        relevance(make("token"), torch.randn(2, 3, 32, 32), classes=[1, 2, 3])
    with pytest.raises(ConfigError, match="0 to 9"):
        relevance(make("token"), torch.randn(1, 3, 32, 32), classes=10)


@dataclass(frozen=True, kw_only=True)
class ExtendedConfig(ViTConfig):
    register_tokens: int = 0


@pytest.mark.parametrize("path", ["encoder.blocks.0", "encoder.blocks.1.attention", "encoder.blocks.0.mlp"])
def test_an_unknown_module_is_declined_by_name(path: str):
    model = make("token")
    model.get_submodule(path).add_module("layer_scale", torch.nn.Identity())
    with pytest.raises(DoesNotApply, match=r"relevance does not know (attention\.|mlp\.)?layer_scale of"):
        relevance(model, images_for(model))


def test_a_replaced_attention_is_declined_by_name():
    model = make("token")
    model.encoder.blocks[1].attention = LinearAttention(width=model.config.width, heads=model.config.heads)
    with pytest.raises(DoesNotApply, match="relevance does not know attention as a LinearAttention"):
        relevance(model, images_for(model))


class LinearAttention(SelfAttention):
    pass


def test_an_unknown_option_is_declined_by_name():
    model = make("token")
    model.config = ExtendedConfig(**vars(model.config))
    with pytest.raises(DoesNotApply, match="relevance does not know the option register_tokens of ExtendedConfig"):
        relevance(model, images_for(model))
