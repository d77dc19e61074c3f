"""Gradient relevance against the reference forward pass of the tests, written out with gradients retained."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.model import reference as plain
from tests.model.kinds import KINDS, images_for, make
from vitkit.errors import ConfigError
from vitkit.inspect.applies import DoesNotApply
from vitkit.inspect.relevance import relevance, written_out

CLASSIFIERS = [kind for kind in KINDS if kind not in ("ResNet", "hybrid", "no head")]
PLAIN = [kind for kind in CLASSIFIERS if "hybrid" not in kind and kind != "axial" and "relative" not in kind]


def expected(model, image: torch.Tensor, target: int, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Chefer et al., with weights that keep their gradients, in a forward pass that shares no code with the model."""
    formed: list[list[torch.Tensor]] = []

    def attention(state, name, x, heads, offsets):
        d = x.shape[1] // heads
        q, k, v = plain.linear(state, f"{name}.qkv", x).chunk(3, dim=1)
        formed.append([])
        mixed = []
        for head in range(heads):
            part = slice(head * d, (head + 1) * d)
            weights = torch.softmax(q[:, part] @ k[:, part].T / math.sqrt(d), dim=1)
            weights.retain_grad()
            formed[-1].append(weights)
            mixed.append(weights @ v[:, part])
        return plain.linear(state, f"{name}.out", torch.cat(mixed, dim=1))

    monkeypatch.setattr(plain, "attention", attention)
    state = {name: value.double().requires_grad_() for name, value in model.state_dict().items()}
    plain.forward(state, model.config, image.double())[target].backward()
    tokens = model.config.tokens
    rolled = np.eye(tokens)
    for layer in formed:
        step = np.mean([(w * w.grad).clamp(min=0).detach().numpy() for w in layer], axis=0)
        rolled = rolled + step @ rolled
    first = int(model.config.class_token)
    rolled = rolled - np.eye(tokens)
    row = rolled[0] if model.config.pool == "token" else rolled[first:].mean(axis=0)
    return row[first:].reshape(model.config.grid)


@pytest.mark.parametrize("kind", PLAIN)
def test_relevance_equals_retained_gradients(kind: str, monkeypatch: pytest.MonkeyPatch):
    model = make(kind)
    images = images_for(model)
    found = relevance(model, images, classes=[3, 7])
    for index, target in enumerate([3, 7]):
        map_ = expected(model, images[index], target, monkeypatch)
        assert map_.max() > 0
        np.testing.assert_allclose(found.maps[index], map_, rtol=1e-3, atol=1e-5 * map_.max())


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_the_twin_answers_as_the_model_does_and_shares_its_weights(kind: str):
    model = make(kind)
    images = images_for(model)
    twin, formed = written_out(model)
    torch.testing.assert_close(twin(images), model(images), atol=1e-5, rtol=1e-5)
    assert {one.data_ptr() for one in twin.parameters()} == {one.data_ptr() for one in model.parameters()}
    assert not any(one.requires_grad for one in twin.parameters())
    assert len(formed) == model.config.depth * (1 + model.config.axial)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_asking_for_its_own_answer_is_the_default_and_leaves_no_trace(kind: str):
    model = make(kind)
    images = images_for(model, 3)
    logits = model(images)
    found = relevance(model, images)
    assert found.classes.tolist() == logits.argmax(1).tolist()
    np.testing.assert_allclose(found.probabilities, logits.softmax(1).max(1).values.detach(), atol=1e-5)
    assert found.maps.shape == (3, *model.config.grid)
    assert (found.maps >= 0).all()
    assert all(one.grad is None for one in model.parameters())
    assert all(one.requires_grad for one in model.parameters())
    assert torch.equal(model(images), logits)


def test_it_does_not_depend_on_how_the_model_is_used_otherwise():
    """In float64, within inference mode, for no picture at all."""
    model = make("token")
    images = images_for(model)
    found = relevance(model, images)
    with torch.inference_mode():
        np.testing.assert_allclose(relevance(model, images).maps, found.maps, rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(relevance(model, images * 1).maps, found.maps, rtol=1e-4, atol=1e-7)
    assert relevance(model, images[:0]).maps.shape == (0, *model.config.grid)
    wide = relevance(model.double(), images.double())
    assert wide.maps.dtype == wide.probabilities.dtype == np.float32
    np.testing.assert_allclose(wide.maps, found.maps, rtol=1e-3, atol=1e-6)


def test_pictures_do_not_meet():
    model = make("token")
    images = images_for(model, 4)
    together = relevance(model, images, classes=2).maps
    alone = [relevance(model, image[None], classes=2).maps[0] for image in images]
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-7)


def test_axial_relevance_reaches_every_patch_through_its_row_and_column():
    model = make("axial")
    found = relevance(model, images_for(model), token=(0, 0))
    assert np.count_nonzero(found.maps[0]) > model.config.grid[0] + model.config.grid[1]


def test_a_model_without_classes_and_a_class_that_it_lacks_are_told():
    with pytest.raises(DoesNotApply, match="no classes"):
        relevance(make("no head"), torch.randn(1, 3, 32, 32))
    with pytest.raises(ConfigError, match="3 classes for 2 pictures"):
        relevance(make("token"), torch.randn(2, 3, 32, 32), classes=[1, 2, 3])
    with pytest.raises(ConfigError, match="0 to 9"):
        relevance(make("token"), torch.randn(1, 3, 32, 32), classes=10)
