"""Vectors of every kind of model: the representation, the class token, the mean of the patches, or both."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import ViTConfig, ViTModel

import vitkit
from tests.model.kinds import KINDS, images_for, make
from vitkit.compute.embedding_model import EmbeddingPool, embedding_model, embedding_width
from vitkit.compute.inference import for_inference
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.model.vit import VisionTransformer


def pools(model: Model) -> list[EmbeddingPool]:
    has_token = isinstance(model, VisionTransformer) and model.config.class_token
    return [pool for pool in get_args(EmbeddingPool) if has_token or "token" not in pool]


def expected(model: Model, images: Tensor, pool: EmbeddingPool) -> Tensor:
    """Return the vectors from the plain model's captured intermediates, in NumPy's words."""
    with torch.no_grad():
        if not isinstance(model, VisionTransformer):
            return model(images, ("representation",))[1]["representation"]
        _, seen = model(images, ("encoded", "representation"))
        if pool == "representation":
            return seen["representation"]
        tokens = seen["encoded"].numpy()
        token, mean = tokens[:, 0], tokens[:, -model.config.patches :].mean(axis=1)
        if model.config.pool == "gap-norm":  # timm's fc_norm comes after whatever is pooled
            token, mean = (
                torch.nn.functional.layer_norm(
                    torch.from_numpy(vector), (32,), model.pool.norm.weight, model.pool.norm.bias, model.config.eps
                ).numpy()
                for vector in (token, mean)
            )
    parts = [token] * ("token" in pool) + [mean] * ("gap" in pool)
    return torch.from_numpy(np.concatenate(parts, axis=1))


@pytest.mark.parametrize("kind", KINDS)
def test_every_model_has_the_vectors_that_its_intermediates_give(kind: str):
    torch.manual_seed(3)
    model = make(kind)
    images = images_for(model, 3)
    for pool in pools(model):
        embedding = embedding_model(model, pool)
        reference = expected(model, images, pool)
        assert reference.shape[1] == embedding_width(model, pool)
        # a few float32 roundings for each of the sums of a layer
        tolerance = {"rtol": 2e-5, "atol": 2e-5 * float(reference.abs().max())}
        with torch.no_grad():
            torch.testing.assert_close(embedding(images), reference, **tolerance)
            torch.testing.assert_close(for_inference(embedding, "fp32")(images), reference, **tolerance)
            low = for_inference(embedding, "bf16")(images)  # fused, for the plain ones
        assert low.dtype == torch.float32
        if isinstance(model, VisionTransformer) and model.stem is None:
            # bf16 has 8 bits: an error of 2^-9 in each of a few dozen operations
            assert torch.nn.functional.cosine_similarity(low, reference, dim=1).min() > 0.99


def test_the_model_itself_stays_as_it_is():
    model = make("representation")
    images, config = images_for(model), model.config
    with torch.no_grad():
        before = model(images)
        embedding_model(model, "token-gap")
        assert torch.equal(model(images), before)
    assert model.config == config


@pytest.mark.parametrize(
    ("kind", "pool", "message"),
    [
        ("gap", "token", "pool 'token' reads the class token, and this model has none: it pools by 'gap'"),
        ("attention pool", "token-gap", "this model has none: it pools by 'attention'"),
        ("ResNet", "token", "a ResNet has none"),
        ("token", "cls", "pool='cls' is not known"),
    ],
)
def test_vectors_that_a_model_lacks_are_refused_by_name(kind: str, pool: EmbeddingPool, message: str):
    with pytest.raises(ConfigError, match=message):
        embedding_model(make(kind), pool)


def test_class_token_and_patches_are_those_of_transformers(tmp_path):
    torch.manual_seed(0)
    theirs = ViTModel(
        ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            image_size=32,
            patch_size=8,
        ),
        add_pooling_layer=False,
    ).eval()
    theirs.save_pretrained(tmp_path)
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        tokens = theirs(images).last_hidden_state
        ours = embedding_model(vitkit.load(tmp_path), "token-gap")(images)
    torch.testing.assert_close(ours, torch.cat([tokens[:, 0], tokens[:, 1:].mean(1)], 1), rtol=1e-5, atol=1e-5)
