"""What training starts from: the pre-trained body as it was, and a new head that knows nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vitkit
from tests.conftest import expected
from tests.data.images import encode, scene
from tests.model.kinds import images_for, make, randomise
from tests.weights.hub_stand_in import hub
from vitkit.config.schema import Fit
from vitkit.data.preprocessing import Preprocessing
from vitkit.errors import ConfigError, SizeError, WeightsError
from vitkit.model.build import Model
from vitkit.model.config import ConvConfig, ResNetConfig
from vitkit.model.resnet import ResNet
from vitkit.train.initial_model import resolve_weights, start_model
from vitkit.weights.public import DEFAULTS

LETTERS = tuple("abcdefghij")  # as many classes as the fixtures have


def start(classes: tuple[str, ...] = ("cat", "dog"), **settings: Any) -> tuple[Model, str]:
    return start_model(Fit(**settings), classes, multilabel=False)


@pytest.fixture
def labelled(fixtures: Path, tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Google's small checkpoint in every format that holds class names."""
    model = vitkit.load(fixtures / "google_token_weights.npz")
    model.metadata = replace(model.metadata, labels=LETTERS)
    places = {}
    for format in ("vitkit", "timm", "hf"):
        places[format] = tmp_path / format
        vitkit.save(model, places[format], format=format)
    return places


def test_a_fresh_model_has_the_sizes_the_classes_and_a_head_of_zeros():
    model, words = start(weights="none", model="mu/4", image=(16, 24))
    assert model.training
    assert (model.config.image, model.config.classes, model.config.channels) == ((16, 24), 2, 3)
    assert model.metadata.labels == ("cat", "dog")
    assert torch.equal(model(images_for(model)), torch.zeros(2, 2))
    assert words.startswith("mu/4 at 16 x 24 px, 28k parameters; fresh weights")


def test_fresh_weights_are_a_function_of_the_seed():
    one, same, other = (start(weights="none", model="mu/4", image=(16, 16), seed=seed)[0] for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.patches.project.weight, other.patches.project.weight)


def test_without_a_word_a_fresh_model_is_for_224_pixels_in_colour():
    model, _ = start(weights="none", model="mu/32")
    assert (model.config.image, model.config.channels) == ((224, 224), 3)


def test_a_fresh_model_takes_options_dropout_and_channels():
    model, words = start(
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
    assert "5 channels" in words
    assert torch.isfinite(model(images_for(model))).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 7}, "the data say how many classes there are"),
        ({"image": 32}, "options.image is a setting of its own"),
        ({"dropout": 0.1}, "--set dropout=0.1"),
        ({"poool": "gap"}, "did you mean pool"),
    ],
)
def test_options_that_cannot_be_are_told(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as told:
        start(weights="none", model="mu/4", image=(16, 16), options=options)
    assert message in str(told.value)


def test_pre_training_without_labels_has_no_head():
    model, _ = start((), weights="none", model="mu/4", image=(16, 16), objective="masked-patch")
    assert model.config.classes == 0
    assert model.metadata.labels is None
    assert isinstance(model.head.logits, nn.Identity)


@pytest.mark.parametrize(
    "name", ["google_token", "google_token_prelinen", "google_gap", "google_representation", "google_hybrid"]
)
def test_googles_weights_start_with_logits_of_zero_over_the_body_they_had(name: str, fixtures: Path):
    file, theirs = fixtures / f"{name}_weights.npz", expected(name)
    model, words = start(weights=str(file))
    assert torch.equal(model(theirs["image"]), torch.zeros(3, 2))
    assert "head 10 → 2 classes, zero-initialised" in words
    assert "positions kept" in words
    model.eval().head = vitkit.load(file).head  # with the old head it is the old model
    torch.testing.assert_close(model(theirs["image"]), theirs["logits"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("format", ["vitkit", "timm", "hf"])
def test_a_head_for_the_same_classes_is_kept(format: str, labelled: dict[str, Path]):
    theirs = expected("google_token")
    model, words = start(LETTERS, weights=str(labelled[format]))
    torch.testing.assert_close(model.eval()(theirs["image"]), theirs["logits"], atol=1e-5, rtol=0)
    assert "head kept: the same classes" in words
    assert model.metadata.labels == LETTERS


def test_the_head_of_pre_training_goes_as_a_whole_even_for_the_same_classes(tmp_path: Path):
    """Section 3.2: a zero-initialised layer takes the place of the whole prediction head."""
    before = vitkit.create("mu/8", image=32, classes=3, representation=16)
    before.metadata = replace(before.metadata, labels=("a", "b", "c"))
    vitkit.save(before, tmp_path / "pre")
    model, words = start_model(Fit(weights=str(tmp_path / "pre")), ("a", "b", "c"), multilabel=False)
    assert model.config.representation is None
    assert not model.head.logits.weight.any()
    assert "head 3 → 3 classes, zero-initialised" in words


@pytest.mark.parametrize("classes", [LETTERS[::-1], LETTERS[:-1], (*LETTERS, "k")])
def test_a_head_for_other_classes_or_another_order_is_not(classes: tuple[str, ...], labelled: dict[str, Path]):
    model, _ = start(classes, weights=str(labelled["vitkit"]))
    assert torch.equal(model(expected("google_token")["image"]), torch.zeros(3, len(classes)))
    assert model.metadata.labels == classes


def test_dropout_stochastic_depth_and_a_larger_image_leave_the_answers_googles(labelled: dict[str, Path]):
    theirs = expected("google_token")
    model, words = start(LETTERS, weights=str(labelled["vitkit"]), image=(48, 48), dropout=0.3, stochastic_depth=0.2)
    assert (model.config.dropout, model.config.stochastic_depth) == (0.3, 0.2)
    torch.testing.assert_close(model.encoder.positions[0].table, theirs["pos_up"][0], atol=1e-5, rtol=0)
    assert not torch.equal(model(theirs["image_up"]), model(theirs["image_up"]))  # in training, both act
    torch.testing.assert_close(model.eval()(theirs["image_up"]), theirs["logits_up"], atol=1e-5, rtol=0)
    assert "positions 4 x 4 → 6 x 6" in words
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_dropout_of_the_weights_can_be_taken_away(tmp_path: Path):
    vitkit.save(vitkit.create("mu/4", image=16, classes=2, dropout=0.5), tmp_path / "a")
    assert start(weights=str(tmp_path / "a"))[0].config.dropout == 0.5
    assert start(weights=str(tmp_path / "a"), dropout=0.0)[0].config.dropout == 0.0


def test_a_resnet_has_no_positions_and_no_dropout(tmp_path: Path):
    vitkit.save(ResNet(ResNetConfig(body=ConvConfig.bit((1, 1, 1, 1), 32), classes=10)), tmp_path / "a")
    model, words = start(weights=str(tmp_path / "a"), image=(96, 64), dropout=0.0)
    assert model.config.image == (96, 64)
    assert "; positions" not in words
    with pytest.raises(ConfigError, match="a ResNet has no dropout"):
        start(weights=str(tmp_path / "a"), dropout=0.1)


def test_preprocessing_stays_with_the_weights_unless_another_resize_is_asked_for(tmp_path: Path):
    model = make("token")
    how = Preprocessing(crop=0.9, interpolation="bilinear", mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3))
    model.metadata = replace(model.metadata, preprocessing=how)
    vitkit.save(model, tmp_path / "a")
    assert start(weights=str(tmp_path / "a"))[0].metadata.preprocessing == how
    assert start(weights=str(tmp_path / "a"), resize="crop")[0].metadata.preprocessing == how
    asked = start(weights=str(tmp_path / "a"), resize="letterbox")[0].metadata.preprocessing
    assert asked == replace(how, resize="letterbox", crop=1.0)


def test_where_weights_come_from_stays_known(labelled: dict[str, Path]):
    model, _ = start(weights=str(labelled["vitkit"]), data="photos", recipe="small_transfer")
    assert model.metadata.provenance["weights"] == "vitkit"  # not whose disk it was on
    assert model.metadata.provenance["data"] == "photos"
    json.dumps(dict(model.metadata.provenance))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "mu/8"}, "is mu/4, not mu/8"),
        ({"options": {"pool": "gap"}}, "describe a fresh model"),
        ({"channels": 1}, "takes pictures of 3 channels, not 1"),
    ],
)
def test_what_contradicts_the_weights_is_an_error(settings: dict[str, Any], message: str, tmp_path: Path):
    vitkit.save(vitkit.create("mu/4", image=16, classes=2), tmp_path / "a")
    assert start(weights=str(tmp_path / "a"), model="mu/4", channels=3)
    with pytest.raises(ConfigError) as told:
        start(weights=str(tmp_path / "a"), **settings)
    assert message in str(told.value)


def test_weights_without_a_name_are_told_by_their_sizes(fixtures: Path):
    with pytest.raises(ConfigError, match=r"is no named model \(depth 2, width 48, heads 3, patch 8\), not B/16"):
        start(weights=str(fixtures / "google_token_weights.npz"), model="B/16")


def test_an_image_that_the_patches_do_not_divide_is_an_error(fixtures: Path):
    with pytest.raises(SizeError, match="a 36 x 36 image cannot be cut into 8-pixel patches"):
        start(weights=str(fixtures / "google_token_weights.npz"), image=(36, 36))


def test_weights_that_do_not_tell_their_heads_can_be_converted_first(fixtures: Path):
    with pytest.raises(WeightsError, match=r"--heads N[\s\S]*vitkit convert .* OUT --to vitkit"):
        start(weights=str(fixtures / "timm_token_weights.safetensors"))


def test_default_weights_are_the_variants_public_ones():
    for model, public in DEFAULTS.items():
        assert resolve_weights(Fit(model=model)) == Fit(model=model, weights=f"hf:{public.repository}")
    assert resolve_weights(Fit()).model == "Ti/16"
    assert resolve_weights(Fit(weights="none")).model == "Ti/16"
    assert resolve_weights(Fit(weights="hf:a/b")) == Fit(weights="hf:a/b")


def test_a_variant_without_public_weights_says_so():
    with pytest.raises(ConfigError) as told:
        resolve_weights(Fit(model="g/14"))
    for words in ("no public weights are known for g/14", "--weights none", "--weights PATH", "Ti/16"):
        assert words in str(told.value)
    with pytest.raises(ConfigError, match="there is no model 'Tii/16'; did you mean Ti/16"):
        resolve_weights(Fit(model="Tii/16"))


def test_weights_that_lie_here_are_found_from_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "mine.npz").touch()
    monkeypatch.chdir(tmp_path)
    assert resolve_weights(Fit(weights="mine.npz")).weights == str(tmp_path / "mine.npz")
    assert resolve_weights(Fit(weights="other.npz")).weights == "other.npz"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(3):
            (tmp_path / "photos" / name / f"{index}.png").write_bytes(encode(scene(), "PNG"))
    return tmp_path / "photos"


def fit(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: huggingface_hub reads its environment once."""
    settings = {
        **os.environ,
        "HF_HOME": str(folder / "cache"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "*",
        **environment,
    }
    return subprocess.run(
        [sys.executable, "-m", "vitkit", "fit", "photos", *words],
        cwd=folder,
        env=settings,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_without_a_word_the_public_weights_come_from_the_hub(photos: Path):
    folder = photos.parent
    repository = DEFAULTS["Ti/16"].repository
    public = randomise(vitkit.create("Ti/16", classes=5, image=32, gelu="exact")).eval()
    vitkit.save(public, folder / "served" / repository, format="timm")
    with hub(folder / "served") as (address, _):
        result = fit(folder, "--steps", "1", "--batch", "2", "--lr", "1e-30", HF_ENDPOINT=address)
    assert result.returncode == 0, result.stderr
    assert "Ti/16 at 32 px" in result.stdout
    assert f"weights hf:{repository}; positions kept (2 x 2), head 5 → 2 classes" in result.stdout
    trained = vitkit.load(folder / "runs" / "photos-Ti-16")
    images = images_for(public)
    for model in (public, trained):
        model.replace_head(0)  # the step was too small to move a weight: the body is the public one
    torch.testing.assert_close(trained(images), public(images))


def test_public_weights_out_of_reach_are_told_with_the_other_ways_to_start(photos: Path):
    result = fit(photos.parent, HF_HUB_OFFLINE="1")
    assert result.returncode == 2
    for words in ("cannot be fetched, and is not in the local cache", "--weights PATH", "--weights none"):
        assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(photos.parent.glob("runs/*"))  # nothing is in the way of the next attempt
