"""Conversions from format to format and back give the same bytes, or are refused with the names of the losses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vitkit
from tests.model.kinds import ALL_KINDS, images_for, make, randomise
from vitkit.cli.main import main
from vitkit.data.preprocessing import Preprocessing
from vitkit.errors import WeightsError
from vitkit.model.base import Metadata
from vitkit.model.build import Model, build
from vitkit.model.config import ViTConfig


@st.composite
def plain_models(draw: st.DrawFn) -> Model:
    """Draw models with a class token, 1-D positions and a linear head, which all four formats hold."""
    heads, patch = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    config = ViTConfig(
        depth=draw(st.integers(1, 12)),
        width=heads * draw(st.integers(1, 8)),
        heads=heads,
        mlp=draw(st.integers(1, 30)),
        patch=patch,
        image=(draw(st.integers(1, 4)) * patch, draw(st.integers(1, 4)) * patch),
        channels=draw(st.integers(1, 4)),
        classes=draw(st.integers(1, 11)),
    )
    return randomise(build(config)).eval()


@given(plain_models())
@settings(max_examples=20)
def test_google_native_timm_hf_google_gives_the_same_bytes(tmp_path_factory, model: Model):
    folder = tmp_path_factory.mktemp("trip")
    vitkit.save(model, folder / "start.npz", format="google", lossy=True)  # 1 x 4 patches look like 2 x 2
    grid = [str(side) for side in model.config.grid]
    main(["convert", str(folder / "start.npz"), str(folder / "native"), "--to", "vitkit", "--grid", *grid])
    main(["convert", str(folder / "native"), str(folder / "timm"), "--to", "timm"])
    main(["convert", str(folder / "timm"), str(folder / "hf"), "--to", "hf"])
    main(["convert", str(folder / "hf"), str(folder / "end.npz"), "--to", "google", "--lossy"])
    with np.load(folder / "start.npz") as start, np.load(folder / "end.npz") as end:
        assert start.files == end.files
        for name in start.files:
            assert start[name].tobytes() == end[name].tobytes()
    images = images_for(model)
    for name in ("native", "timm", "hf"):
        assert torch.equal(vitkit.load(folder / name)(images), model(images))


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_our_own_format_holds_every_model(kind: str, tmp_path: Path):
    model = make(kind)
    labels = tuple("abcdefghij") if model.config.classes else None
    model.metadata = Metadata(
        labels=labels,
        provenance={"trained": "by a test"},
        preprocessing=Preprocessing(resize="letterbox", mean=(0.1,) * 3),
    )
    vitkit.save(model, tmp_path / "folder")
    vitkit.save(model, tmp_path / "alone.safetensors")
    images = images_for(model)
    for path in (tmp_path / "folder", tmp_path / "folder" / "model.safetensors", tmp_path / "alone.safetensors"):
        loaded = vitkit.load(path)
        assert loaded.config == model.config
        assert loaded.metadata == model.metadata
        assert torch.equal(loaded(images), model(images))


@pytest.mark.parametrize(
    ("kind", "format", "lost"),
    [
        ("representation", "hf", "pre_logits"),
        ("representation", "timm", "pre_logits"),
        ("gap-norm", "google", "pool='gap-norm'"),
        ("attention pool", "google", "attention"),
        ("gap-norm with class token", "hf", "gap-norm"),
        ("hybrid", "hf", "convolutional stem"),
        ("hybrid", "timm", "this hybrid"),
        ("ResNet", "hf", "a ResNet"),
        ("2d", "google", "positions='2d'"),
        ("2d", "timm", "positions='2d'"),
        ("2d", "hf", "positions='2d'"),
        ("relative", "timm", "relative"),
        ("sincos", "google", "sincos"),
        ("1d every", "timm", "injected at 'every'"),
        ("1d shared", "hf", "injected at 'shared'"),
        ("no positions", "hf", "positions='none'"),
        ("no positions", "google", "positions='none'"),
        ("post-norm", "timm", "post-norm"),
        ("axial", "google", "axial"),
        ("exact GELU", "google", "GELU: exact"),
    ],
)
def test_what_a_format_cannot_hold_is_refused_by_name_and_nothing_is_written(
    kind: str, format: str, lost: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    vitkit.save(make(kind), tmp_path / "in")
    out = tmp_path / ("out.npz" if format == "google" else "out")
    with pytest.raises(SystemExit, match="2"):
        main(["convert", str(tmp_path / "in"), str(out), "--to", format])
    message = capsys.readouterr().err
    assert lost in message
    assert "nothing was written" in message
    assert not out.exists()


def test_lossy_writes_another_gelu_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    model = make("exact GELU")
    vitkit.save(model, tmp_path / "out.npz", format="google", lossy=True)
    assert "GELU" in caplog.text
    assert vitkit.load(tmp_path / "out.npz").config == replace(model.config, gelu="tanh")


def test_a_grid_that_would_be_read_back_as_another_is_refused(tmp_path: Path):
    model = randomise(vitkit.create("mu/8", image=(16, 64), classes=3))  # 2 x 8 patches look like 4 x 4
    with pytest.raises(WeightsError, match=r"read it back with grid=\(2, 8\), or it is taken for a square"):
        vitkit.save(model, tmp_path / "out.npz", format="google")


def test_an_epsilon_that_matters_is_refused(tmp_path: Path):
    with pytest.raises(WeightsError, match="LayerNorm epsilon"):
        vitkit.save(vitkit.create("mu/8", image=32, eps=0.1), tmp_path / "out", format="timm")


def test_a_replaced_head_is_logged_and_starts_at_zero(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    vitkit.save(make("representation"), tmp_path / "in")
    model = vitkit.load(tmp_path / "in", classes=37, image=(48, 64))
    assert "head replaced: 10 → 37 classes, zero-initialised" in caplog.text
    assert "32 → 48 x 64 px, positions interpolated in 2-D (4 x 4 → 6 x 8), paper" in caplog.text
    assert torch.equal(model(images_for(model)), torch.zeros(2, 37))
    assert not model.training


def test_the_same_number_of_classes_keeps_the_head(tmp_path: Path):
    original = make("representation")
    vitkit.save(original, tmp_path / "in")
    images = images_for(original)
    assert torch.equal(vitkit.load(tmp_path / "in", classes=10)(images), original(images))


@pytest.mark.parametrize(
    ("format", "name", "message"),
    [
        ("google", "out", "one .npz file"),
        ("vitkit", "out.npz", "format='google' writes .npz files"),
        ("timm", "out.safetensors", "is a folder"),
        ("hf", "out.bin", "is a folder"),
    ],
)
def test_a_path_whose_suffix_does_not_fit_the_format_is_refused(format: str, name: str, message: str, tmp_path: Path):
    with pytest.raises(WeightsError, match=message):
        vitkit.save(make("token"), tmp_path / name, format=format)
    assert not any(tmp_path.iterdir())
