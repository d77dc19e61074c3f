"""Weights in Google's format give the logits of Google's own code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import vitkit
from tests.conftest import expected
from tests.model.kinds import make, randomise
from tests.weights.rounding import ROUNDING
from vitkit.model.config import ResNetConfig
from vitkit.model.conv_config import ConvConfig
from vitkit.model.resnet import ResNet

NAMES = ["google_token", "google_token_prelinen", "google_gap", "google_representation", "google_hybrid"]


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_those_of_the_flax_code(name: str, fixtures: Path):
    model, theirs = vitkit.load(fixtures / f"{name}_weights.npz"), expected(name)
    torch.testing.assert_close(model(theirs["image"]), theirs["logits"], atol=ROUNDING, rtol=0)


def test_positions_and_logits_at_a_higher_resolution_equal_those_of_the_flax_code(fixtures: Path):
    model, theirs = vitkit.load(fixtures / "google_token_weights.npz", image=48), expected("google_token")
    torch.testing.assert_close(model.encoder.positions[0].table, theirs["pos_up"][0], atol=ROUNDING, rtol=0)
    torch.testing.assert_close(model(theirs["image_up"]), theirs["logits_up"], atol=ROUNDING, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_loading_and_saving_gives_the_same_arrays(name: str, fixtures: Path, tmp_path: Path):
    vitkit.save(vitkit.load(fixtures / f"{name}_weights.npz"), tmp_path / "out.npz", format="google")
    with np.load(fixtures / f"{name}_weights.npz") as theirs, np.load(tmp_path / "out.npz") as ours:
        assert sorted(ours.files) == sorted(theirs.files)
        for key in theirs.files:
            assert ours[key].dtype == theirs[key].dtype
            np.testing.assert_array_equal(ours[key], theirs[key])


def test_new_models_are_written_under_the_names_of_the_published_files(tmp_path: Path):
    vitkit.save(make("token"), tmp_path / "out.npz", format="google")
    with np.load(tmp_path / "out.npz") as arrays:
        assert "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel" in arrays.files


@pytest.mark.parametrize("prefix", ["params/", "opt/target/"])
def test_weights_inside_a_training_state_are_read(prefix: str, fixtures: Path, tmp_path: Path):
    with np.load(fixtures / "google_token_weights.npz") as file:
        state = {f"{prefix}{name}": file[name] for name in file}
    np.savez(tmp_path / "state.npz", **state, **{"opt/state/step": np.int32(7)})
    theirs = expected("google_token")
    model = vitkit.load(tmp_path / "state.npz")
    torch.testing.assert_close(model(theirs["image"]), theirs["logits"], atol=ROUNDING, rtol=0)


def test_group_norms_of_older_flax_files_are_read(fixtures: Path, tmp_path: Path):
    with np.load(fixtures / "google_hybrid_weights.npz") as arrays:
        older = {key: arrays[key][None, None, None] if "/gn" in f"/{key}" else arrays[key] for key in arrays.files}
    np.savez(tmp_path / "older.npz", **older)
    theirs = expected("google_hybrid")
    model = vitkit.load(tmp_path / "older.npz")
    torch.testing.assert_close(model(theirs["image"]), theirs["logits"], atol=ROUNDING, rtol=0)


def test_a_bit_resnet_round_trips_under_the_names_of_big_transfer(tmp_path: Path):
    body = ConvConfig(
        layers=(1, 2, 1, 1),
        width=32,
        preactivation=True,
        standardise_eps=1e-10,
        standardise_on="variance",
        norm_eps=1e-5,
    )
    model = randomise(ResNet(ResNetConfig(body=body, classes=5))).eval()
    vitkit.save(model, tmp_path / "bit.npz", format="google")
    with np.load(tmp_path / "bit.npz") as arrays:  # shapes as bit_pytorch/models.py reads them
        assert arrays["resnet/block2/unit02/b/standardized_conv2d/kernel"].shape == (3, 3, 64, 64)
        assert arrays["resnet/block1/unit01/a/proj/standardized_conv2d/kernel"].shape == (1, 1, 32, 128)
        assert arrays["resnet/head/conv2d/kernel"].shape == (1, 1, 1024, 5)
    images = torch.randn(2, 3, 64, 64)
    loaded = vitkit.load(tmp_path / "bit.npz")
    assert loaded.config.body == body
    torch.testing.assert_close(loaded(images), model(images), atol=0, rtol=0)


def test_the_number_of_heads_is_inferred_from_the_tensors(fixtures: Path):
    with pytest.raises(vitkit.VitkitError, match="has 3 heads according to its tensors' shapes, not 4"):
        vitkit.load(fixtures / "google_token_weights.npz", heads=4)
