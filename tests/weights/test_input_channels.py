"""Weights for another number of channels: the RGB model itself is the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vitkit
from tests.data.sample_images import encode
from tests.model.kinds import KINDS, make, randomise
from vitkit.data.decode import decode
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.transforms import EvalTransform
from vitkit.model.build import Model
from vitkit.weights.input_channels import adapt_channels

IMAGENET = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), crop=0.9)
PLAIN = [kind for kind in KINDS if KINDS[kind][0] == "mu/8" and "channel" not in kind]


def logits(model: Model, content: bytes) -> torch.Tensor:
    transform = EvalTransform(image=model.config.image, preprocessing=model.metadata.preprocessing)
    with torch.no_grad():
        return model(transform(decode(content, channels=model.config.channels))[None])


def grey_image(seed: int = 0) -> bytes:
    return encode(np.random.default_rng(seed).integers(0, 256, (50, 70), dtype=np.uint8), "PNG")


def assert_same(model: Model, one: torch.Tensor, other: torch.Tensor) -> None:
    """Compare up to the order of summation: 16 float32 roundings of a sum over width, in each layer."""
    rounding = 16 * torch.finfo(torch.float32).eps * (model.config.depth * model.config.width) ** 0.5
    torch.testing.assert_close(one, other, rtol=0, atol=rounding * max(float(other.abs().max()), 1.0))


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("preprocessing", [Preprocessing(), IMAGENET], ids=["half", "ImageNet"])
def test_a_grey_image_has_the_logits_that_its_rgb_version_had(kind: str, preprocessing: Preprocessing):
    model = make(kind)
    model.metadata = replace(model.metadata, preprocessing=preprocessing)
    grey, description = adapt_channels(model, 1)
    assert grey.config.channels == 1
    assert len(grey.metadata.preprocessing.mean) == len(grey.metadata.preprocessing.std) == 1
    assert grey.metadata.preprocessing.crop == preprocessing.crop
    assert description == "3 → 1 channel, the first weights summed over the channels"
    if model.config.classes:
        assert_same(model, logits(grey, grey_image()), logits(model, grey_image()))
    assert not [name for name, tensor in grey.state_dict().items() if not tensor.isfinite().all()]


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
    st.lists(st.floats(0.1, 1), min_size=3, max_size=3),
    st.integers(0, 255),
)
def test_any_normalisation_of_the_colours_goes_into_the_sum(mean: list[float], std: list[float], level: int):
    torch.manual_seed(0)
    model = randomise(vitkit.create("mu/4", image=16, classes=5).eval())
    model.metadata = replace(model.metadata, preprocessing=Preprocessing(mean=tuple(mean), std=tuple(std)))
    image = encode(np.full((20, 20), level, dtype=np.uint8), "PNG")
    assert_same(model, logits(adapt_channels(model, 1)[0], image), logits(model, image))


@pytest.mark.parametrize("channels", [2, 4, 5, 6, 13])
def test_more_channels_repeat_the_colours_as_timm_does(channels: int):
    model = make("token")
    model.metadata = replace(model.metadata, preprocessing=IMAGENET)
    many, description = adapt_channels(model, channels)
    assert (
        description
        == f"3 → {channels} channels, the first weights repeated over the channels and scaled by 3/{channels}"
    )
    convolution = model.patches.project.weight.reshape(-1, 3, 8, 8)
    # timm 1.0, adapt_input_conv
    repeated = convolution.repeat(1, -(-channels // 3), 1, 1)[:, :channels] * (3 / channels)
    torch.testing.assert_close(many.patches.project.weight, repeated.flatten(1))
    assert torch.equal(many.patches.project.bias, model.patches.project.bias)
    assert many.metadata.preprocessing.mean == (IMAGENET.mean * 5)[:channels]
    assert many.metadata.preprocessing.std == (IMAGENET.std * 5)[:channels]


def test_bands_that_repeat_the_colours_have_the_logits_of_the_colours():
    model = make("token")
    six, _ = adapt_channels(model, 6)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert_same(model, six(images.repeat(1, 2, 1, 1)), model(images))


def test_weights_for_grey_images_take_rgb():
    model = make("non-square, one channel")
    model.metadata = replace(model.metadata, preprocessing=Preprocessing(mean=(0.3,), std=(0.2,)))
    colour, description = adapt_channels(model, 3)
    assert description == "1 → 3 channels, the first weights repeated over the channels and scaled by 1/3"
    assert_same(model, logits(colour, grey_image()), logits(model, grey_image()))


@pytest.mark.parametrize("kind", ["root hybrid", "hybrid", "ResNet"])
def test_a_standardised_stem_is_adapted_and_said_to_be_approximate(kind: str):
    model = make(kind)
    root = (model.stem if hasattr(model, "stem") else model.body).root.weight
    grey, description = adapt_channels(model, 1)
    assert "(approximate: they are standardised; " in description
    adapted = (grey.stem if hasattr(grey, "stem") else grey.body).root.weight
    torch.testing.assert_close(adapted, root.sum(1, keepdim=True))
    with torch.no_grad():
        assert grey(torch.randn(1, 1, *grey.config.image)).isfinite().all()
    assert "approximate" not in adapt_channels(model, 4)[1]


def test_the_first_model_is_not_changed():
    model = make("token").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    grey, _ = adapt_channels(model, 1)
    assert grey.training
    assert model.config.channels == 3
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
