"""The initial model of a run: the pre-trained backbone unchanged, and a new zero-initialised head."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import vitkit
from tests.conftest import expected
from tests.data.sample_images import encode
from tests.model.kinds import images_for, make, randomise
from tests.weights.fake_hub import hub
from vitkit.config.schema import Fit
from vitkit.data.preprocessing import Preprocessing
from vitkit.errors import ConfigError, SizeError, WeightsError
from vitkit.model.build import Model
from vitkit.model.config import ResNetConfig
from vitkit.model.conv_config import ConvConfig
from vitkit.model.resnet import ResNet
from vitkit.train.initial_model import initial_model
from vitkit.weights.public import DEFAULTS

LETTERS = tuple("abcdefghij")  # as many classes as the fixtures have


def start(classes: tuple[str, ...] = ("cat", "dog"), **settings: Any) -> tuple[Model, str]:
    return initial_model(Fit(**settings), classes, multilabel=False)


@pytest.fixture
def labelled(fixtures: Path, tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Save Google's small checkpoint in every format that holds class names."""
    model = vitkit.load(fixtures / "google_token_weights.npz")
    model.metadata = replace(model.metadata, labels=LETTERS)
    paths = {}
    for format in ("vitkit", "timm", "hf"):
        paths[format] = tmp_path / format
        vitkit.save(model, paths[format], format=format)
    return paths


def test_a_random_model_has_the_sizes_the_classes_and_a_head_of_zeros():
    model, description = start(weights="none", model="mu/4", image=(16, 24))
    assert model.training
    assert (model.config.image, model.config.classes, model.config.channels) == ((16, 24), 2, 3)
    assert model.metadata.labels == ("cat", "dog")
    assert torch.equal(model(images_for(model)), torch.zeros(2, 2))
    assert description.startswith("mu/4 at 16 x 24 px, 28k parameters; randomly initialised")


def test_random_weights_are_a_function_of_the_seed():
    one, same, other = (start(weights="none", model="mu/4", image=(16, 16), seed=seed)[0] for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.patches.project.weight, other.patches.project.weight)


def test_by_default_a_random_model_takes_224_pixels_and_three_channels():
    model, _ = start(weights="none", model="mu/32")
    assert (model.config.image, model.config.channels) == ((224, 224), 3)


def test_a_random_model_takes_options_dropout_and_channels():
    model, description = start(
        weights="none",
        model="mu/4",
        image=(16, 16),
        channels=5,
        dropout=0.1,
        stochastic_depth=0.2,
        options={"pool": "gap"},
    )
    assert (model.config.pool, model.config.dropout, model.config.stochastic_depth) == ("gap", 0.1, 0.2)
    assert model.metadata.preprocessing.mean == (0.5,) * 5
    assert "5 channels" in description
    assert torch.isfinite(model(images_for(model))).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 7}, "the number of classes comes from the data"),
        ({"image": 32}, "options.image is a setting of its own"),
        ({"dropout": 0.1}, "--set dropout=0.1"),
        ({"poool": "gap"}, "did you mean pool"),
    ],
)
def test_invalid_options_are_an_error(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as raised:
        start(weights="none", model="mu/4", image=(16, 16), options=options)
    assert message in str(raised.value)


def test_pre_training_without_labels_has_no_head():
    model, _ = start((), weights="none", model="mu/4", image=(16, 16), objective="masked-patch")
    assert model.config.classes == 0
    assert model.metadata.labels is None
    assert isinstance(model.head.logits, nn.Identity)


@pytest.mark.parametrize(
    "name", ["google_token", "google_token_prelinen", "google_gap", "google_representation", "google_hybrid"]
)
def test_googles_weights_keep_their_backbone_and_start_with_zero_logits(name: str, fixtures: Path):
    file, theirs = fixtures / f"{name}_weights.npz", expected(name)
    model, description = start(weights=str(file))
    assert torch.equal(model(theirs["image"]), torch.zeros(3, 2))
    assert "head 10 → 2 classes, zero-initialised" in description
    assert "positions kept" in description
    model.eval().head = vitkit.load(file).head  # with the old head, the logits are the old ones
    torch.testing.assert_close(model(theirs["image"]), theirs["logits"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("format", ["vitkit", "timm", "hf"])
def test_a_head_for_the_same_classes_is_kept(format: str, labelled: dict[str, Path]):
    theirs = expected("google_token")
    model, description = start(LETTERS, weights=str(labelled[format]))
    torch.testing.assert_close(model.eval()(theirs["image"]), theirs["logits"], atol=1e-5, rtol=0)
    assert "head kept: the same classes" in description
    assert model.metadata.labels == LETTERS


def test_a_pre_training_head_is_replaced_as_a_whole_even_for_the_same_classes(tmp_path: Path):
    """Section 3.2: a zero-initialised layer replaces the whole prediction head."""
    before = vitkit.create("mu/8", image=32, classes=3, representation=16)
    before.metadata = replace(before.metadata, labels=("a", "b", "c"))
    vitkit.save(before, tmp_path / "pre")
    model, description = initial_model(Fit(weights=str(tmp_path / "pre")), ("a", "b", "c"), multilabel=False)
    assert model.config.representation is None
    assert not model.head.logits.weight.any()
    assert "head 3 → 3 classes, zero-initialised" in description


@pytest.mark.parametrize("classes", [LETTERS[::-1], LETTERS[:-1], (*LETTERS, "k")])
def test_a_head_for_other_classes_or_another_order_is_replaced(classes: tuple[str, ...], labelled: dict[str, Path]):
    model, _ = start(classes, weights=str(labelled["vitkit"]))
    assert torch.equal(model(expected("google_token")["image"]), torch.zeros(3, len(classes)))
    assert model.metadata.labels == classes


def test_dropout_stochastic_depth_and_a_larger_image_keep_googles_logits(labelled: dict[str, Path]):
    theirs = expected("google_token")
    model, description = start(
        LETTERS, weights=str(labelled["vitkit"]), image=(48, 48), dropout=0.3, stochastic_depth=0.2
    )
    assert (model.config.dropout, model.config.stochastic_depth) == (0.3, 0.2)
    torch.testing.assert_close(model.encoder.positions[0].table, theirs["pos_up"][0], atol=1e-5, rtol=0)
    assert not torch.equal(model(theirs["image_up"]), model(theirs["image_up"]))  # in training mode, both are active
    torch.testing.assert_close(model.eval()(theirs["image_up"]), theirs["logits_up"], atol=1e-5, rtol=0)
    assert "positions interpolated in 2-D (4 x 4 → 6 x 6)" in description
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_dropout_of_the_weights_can_be_switched_off(tmp_path: Path):
    vitkit.save(vitkit.create("mu/4", image=16, classes=2, dropout=0.5), tmp_path / "a")
    assert start(weights=str(tmp_path / "a"))[0].config.dropout == 0.5
    assert start(weights=str(tmp_path / "a"), dropout=0.0)[0].config.dropout == 0.0


def test_a_resnet_has_no_positions_and_no_dropout(tmp_path: Path):
    vitkit.save(ResNet(ResNetConfig(body=ConvConfig.bit((1, 1, 1, 1), 32), classes=10)), tmp_path / "a")
    model, description = start(weights=str(tmp_path / "a"), image=(96, 64), dropout=0.0)
    assert model.config.image == (96, 64)
    assert "; positions" not in description
    with pytest.raises(ConfigError, match="a ResNet has no dropout"):
        start(weights=str(tmp_path / "a"), dropout=0.1)


def test_preprocessing_is_that_of_the_weights_unless_another_resize_is_requested(tmp_path: Path):
    model = make("token")
    preprocessing = Preprocessing(crop=0.9, interpolation="bilinear", mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3))
    model.metadata = replace(model.metadata, preprocessing=preprocessing)
    vitkit.save(model, tmp_path / "a")
    assert start(weights=str(tmp_path / "a"))[0].metadata.preprocessing == preprocessing
    assert start(weights=str(tmp_path / "a"), resize="crop")[0].metadata.preprocessing == preprocessing
    resized = start(weights=str(tmp_path / "a"), resize="letterbox")[0].metadata.preprocessing
    assert resized == replace(preprocessing, resize="letterbox", crop=1.0)


def test_the_provenance_of_weights_is_recorded(labelled: dict[str, Path]):
    model, _ = start(weights=str(labelled["vitkit"]), data="photos", recipe="small_transfer")
    assert model.metadata.provenance["weights"] == "vitkit"  # the name, not the path
    assert model.metadata.provenance["data"] == "photos"
    json.dumps(dict(model.metadata.provenance))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "mu/8"}, "is mu/4, not mu/8"),
        ({"options": {"pool": "gap"}}, "are for a randomly initialised model"),
    ],
)
def test_settings_that_contradict_the_weights_are_an_error(settings: dict[str, Any], message: str, tmp_path: Path):
    vitkit.save(vitkit.create("mu/4", image=16, classes=2), tmp_path / "a")
    assert start(weights=str(tmp_path / "a"), model="mu/4", channels=3)
    with pytest.raises(ConfigError) as raised:
        start(weights=str(tmp_path / "a"), **settings)
    assert message in str(raised.value)


@pytest.mark.parametrize("channels", [1, 4])
def test_weights_for_rgb_start_a_run_on_other_channels(channels: int, tmp_path: Path):
    model = randomise(vitkit.create("mu/4", image=16, classes=2))
    model.metadata = replace(model.metadata, preprocessing=Preprocessing(mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.3)))
    vitkit.save(model, tmp_path / "a")
    begun, description = start(weights=str(tmp_path / "a"), channels=channels, dropout=0.1)
    noun = "channel" if channels == 1 else "channels"
    assert f", {channels} {noun}, " in description
    assert f"; 3 → {channels} {noun}, the first weights " in description
    assert begun.config.channels == len(begun.metadata.preprocessing.mean) == channels
    assert begun.config.dropout == 0.1
    assert begun(torch.zeros(1, channels, 16, 16)).shape == (1, 2)
    unchanged, description = start(weights=str(tmp_path / "a"))
    assert unchanged.config.channels == 3
    assert "→ 3" not in description


def test_weights_of_an_unnamed_model_are_described_by_their_sizes(fixtures: Path):
    with pytest.raises(ConfigError, match=r"is no named model \(depth 2, width 48, heads 3, patch 8\), not B/16"):
        start(weights=str(fixtures / "google_token_weights.npz"), model="B/16")


def test_an_image_that_the_patches_do_not_divide_is_an_error(fixtures: Path):
    with pytest.raises(SizeError, match="a 36 x 36 image cannot be cut into 8-pixel patches"):
        start(weights=str(fixtures / "google_token_weights.npz"), image=(36, 36))


def test_weights_without_a_number_of_heads_can_be_converted_first(fixtures: Path):
    with pytest.raises(WeightsError, match=r"--heads N[\s\S]*vitkit convert .* OUT --to vitkit"):
        start(weights=str(fixtures / "timm_token_weights.safetensors"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(3):
            photo = np.random.default_rng([len(name), ord(name[0]), index]).integers(0, 256, (24, 40, 3), np.uint8)
            (tmp_path / "photos" / name / f"{index}.png").write_bytes(encode(photo, "PNG"))
    return tmp_path / "photos"


def fit(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `vitkit fit` in a process of its own: huggingface_hub reads its environment once."""
    settings = {
        **os.environ,
        "HF_HOME": str(folder / "cache"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "*",
        **environment,
    }
    return subprocess.run(
        [sys.executable, "-m", "vitkit", "fit", "photos", *arguments],
        cwd=folder,
        env=settings,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_public_weights_are_downloaded_from_the_hub(photos: Path):
    folder = photos.parent
    repository = DEFAULTS["R+Ti/16"].repository
    public = randomise(vitkit.create("R+Ti/16", classes=5, image=64, gelu="exact")).eval()
    vitkit.save(public, folder / "served" / repository, format="timm")
    with hub(folder / "served") as (address, _):
        result = fit(folder, "--model", "R+Ti/16", "--steps", "1", "--batch", "2", "--lr", "1e-30", HF_ENDPOINT=address)
    assert result.returncode == 0, result.stderr
    assert "R+Ti/16 at 64 px" in result.stdout
    assert f"weights hf:{repository}; positions kept (2 x 2), linear head 5 → 2 classes" in result.stdout
    trained = vitkit.load(folder / "runs" / "photos-R+Ti-16")
    public = vitkit.load(folder / "served" / repository)
    images = images_for(public)
    for model in (public, trained):
        model.replace_head(0)  # the step was too small to change a weight: the backbone is the public one
    torch.testing.assert_close(trained(images), public(images))


def test_unreachable_public_weights_are_an_error_with_alternatives(photos: Path):
    result = fit(photos.parent, "--model", "B/16", HF_HUB_OFFLINE="1")
    assert result.returncode == 2
    for description in ("cannot be downloaded, and is not in the local cache", "--weights PATH", "--weights none"):
        assert description in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(photos.parent.glob("runs/*"))  # no folder blocks the next attempt
