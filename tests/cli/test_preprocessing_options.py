"""Verbs print the preprocessing that they use, in the same words, and options override it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitkit
from tests.predict.small_model import small_model
from vitkit.cli.main import main

LINE = ["short side to 42 px (bilinear, antialiased), centre crop 32 x 32", "scaled to 0…1, mean 0.4, std 0.5"]
OVERRIDES = ["--crop", "0.75", "--interpolation", "bilinear", "--mean", "0.4"]
REQUESTED = "crop, interpolation, mean as requested"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a model, and with photos of two of its classes in train/ and test/."""
    monkeypatch.chdir(tmp_path)
    vitkit.save(small_model(rounding="timm"), "run")
    noise = np.random.default_rng(0).integers(0, 256, (24, 40, 56, 3), dtype=np.uint8)
    for index, pixels in enumerate(noise):
        path = Path("photos") / ("train", "test")[index % 2] / ("ant", "bee")[index // 2 % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return tmp_path


def test_predict_uses_and_prints_the_overrides(folder: Path, capsys: pytest.CaptureFixture[str]):
    image = "photos/test/ant/1.png"
    main(["predict", "run", image, "--json", *OVERRIDES])
    captured = capsys.readouterr()
    assert captured.err == f"input     {'; '.join(LINE)}; {REQUESTED}\n"
    changed = vitkit.Classifier(small_model(rounding="timm", crop=0.75, interpolation="bilinear", mean=(0.4,) * 3))
    answer = json.loads(captured.out)["answers"][0]
    assert answer["label"] == changed(image).label
    assert answer["probability"] == pytest.approx(changed(image).probability, abs=1e-6)
    main(["predict", "run", image, "--json"])
    captured = capsys.readouterr()
    assert captured.err.startswith(
        "input     short side to 32 px (bicubic, antialiased), centre crop 32 x 32; scaled to"
    )
    assert json.loads(captured.out)["answers"][0]["probability"] != answer["probability"]


def test_evaluate_and_probe_print_and_record_the_overrides(folder: Path, capsys: pytest.CaptureFixture[str]):
    main(["evaluate", "run", "photos", "--out", "evaluation.json", *OVERRIDES])
    assert f"input       {LINE[0]}\n            {LINE[1]}\n            {REQUESTED}\n" in capsys.readouterr().out
    assert json.loads(Path("evaluation.json").read_text())["inputs"] == [*LINE, REQUESTED]
    main(["probe", "run", "photos", "--method", "knn", "--json", *OVERRIDES])
    assert json.loads(capsys.readouterr().out)["inputs"] == [*LINE, REQUESTED]


def test_inspect_prints_the_preprocessing(folder: Path, capsys: pytest.CaptureFixture[str]):
    main(["inspect", "run", "photos/test/ant", "--out", "inspected", "--layer", "0", "--head", "0"])
    line = "short side to 32 px (bicubic, antialiased), centre crop 32 x 32; scaled to 0…1, mean 0.5, std 0.5"
    assert f"input      {line}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--crop 7", "crop=7.0 is a share: above 0, at most 1"),
        ("--mean 0.4 0.5", "--mean: 1 or 3 numbers are needed; found 2"),
        ("--std 0", "deviations above 0"),
        ("--mean", "numbers are needed; found 0"),
    ],
)
def test_values_that_cannot_be_used_are_refused(
    options: str, reason: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as stopped:
        main(["predict", "run", "photos/test/ant/1.png", *options.split()])
    assert stopped.value.code == 2
    assert reason in capsys.readouterr().err
