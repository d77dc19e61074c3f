"""Runs on a subset: every record says so, and a run that was stopped resumes with the same images."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import vitkit
from tests.train.runs import assert_same_end, command_line, error_of, rewind, toy, train_run
from vitkit.cli.main import main
from vitkit.config.schema import Fit
from vitkit.data.partition import partition
from vitkit.data.sources.open import open_data
from vitkit.run_folder import RunError

SHORT = {"steps": 6, "save_every": 2, "score_every": 3, "duplicates": "ignore"}


def test_a_run_on_a_subset_resumes_to_the_same_end_and_refuses_another_subset(tmp_path: Path):
    config = toy(tmp_path / "run", steps=6, save_every=2, score_every=6, subset_per_class=3, dev=0.02, split_seed=5)
    run = train_run(config)
    halfway = rewind(run, tmp_path / "halfway")
    with pytest.raises(RunError, match="subset_per_class"):
        train_run(replace(config, out=str(halfway), subset_per_class=4))
    train_run(replace(config, out=str(halfway)))
    assert_same_end(halfway, run)


def test_every_record_of_a_run_names_its_subset(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "run"
    main(command_line(run, **SHORT, subset=0.05))
    phrase = "300 of 6,000 used for training (subset = 0.05)"
    output = capsys.readouterr().out
    assert f"{phrase}, 10 classes, 30 images each" in output
    assert tomllib.loads((run / "config.toml").read_text())["subset"] == 0.05
    record = json.loads((run / "run.json").read_text())
    expected = {"share": 0.05, "per_class": None, "number": None, "seed": 0, "images": 300, "of": 6000}
    assert record["subset"] == expected
    assert phrase in (run / "report.html").read_text(encoding="utf-8")
    assert "300 of 6,000 used for training (subset = 0.05)" in (run / "README.md").read_text()
    assert "Trained on 300 images" in (run / "report.html").read_text(encoding="utf-8")
    assert set(record["trained_counts"].values()) == {30}
    assert vitkit.load(run).metadata.labels == open_data("fashion").classes
    # all test images are scored, and an epoch is one of the subset
    assert json.loads((run / "evaluation.json").read_text())["images"] == len(open_data("fashion").splits["test"])
    assert record["plan"]["epochs"] == pytest.approx(6 * 16 / 300)


def test_a_head_is_fitted_on_the_subset_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = vitkit.create("mu/4", classes=10, image=28, channels=1)
    vitkit.save(made, tmp_path / "weights.safetensors", format="vitkit")
    vitkit.fit(
        "fashion",
        weights=tmp_path / "weights.safetensors",
        start="head",
        subset_per_class=5,
        duplicates="ignore",
        device="cpu",
        workers=0,
        out=tmp_path / "run",
    )
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["head"]["images"] == record["subset"]["images"] == 50


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("subset=0", "subset = 0: more than 0 and at most 1 is needed"),
        ("subset=2", "subset = 2: more than 0 and at most 1 is needed"),
        ("subset_per_class=0", "subset_per_class = 0: more than 0 is needed"),
        ("subset=1%", "subset"),
    ],
)
def test_nonsense_is_an_error_before_anything_is_written(
    setting: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "run"
    assert message in error_of(capsys, "fit", "fashion", "--weights", "none", "--out", str(run), "--set", setting)
    assert not run.exists()


def test_the_held_out_images_of_a_run_on_a_subset_are_recovered_for_its_evaluation(tmp_path: Path):
    """The images that `vitkit evaluate` scores are those that the run held out, whatever the subset."""
    pixels = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.arange(60) % 3)
    data = open_data(tmp_path / "a.npz")
    settings = Fit(subset=0.2, split_seed=3)
    part, whole = (partition(data, **config.partition) for config in (settings, Fit(split_seed=3)))
    assert part.held_out == whole.held_out
    assert len(part.train) < len(whole.train) // 4 + 3
