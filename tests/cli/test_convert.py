"""`vitkit convert` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import vitkit
from tests.cli.test_main import run
from tests.model.kinds import images_for, make
from vitkit.cli.main import main


def test_convert_prints_what_was_read_and_written(fixtures: Path, tmp_path: Path):
    result = run("convert", str(fixtures / "google_token_weights.npz"), str(tmp_path / "out"), "--to", "timm")
    assert result.returncode == 0, result.stderr
    assert "32 x 32 px, 10 classes" in result.stdout
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]


def test_convert_prints_json(fixtures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    main(["convert", str(fixtures / "google_hybrid_weights.npz"), str(tmp_path / "out"), "--to", "vitkit", "--json"])
    summary = json.loads(capsys.readouterr().out)
    assert summary["to"] == "vitkit"
    assert summary["classes"] == 10


def test_heads_and_grid_reach_the_loader(fixtures: Path, tmp_path: Path):
    model = make("non-square, one channel")
    vitkit.save(model, tmp_path / "in.npz", format="google")
    main(["convert", str(tmp_path / "in.npz"), str(tmp_path / "a"), "--to", "vitkit", "--grid", "2", "5"])
    images = images_for(model)
    assert torch.equal(vitkit.load(tmp_path / "a")(images), model(images))
    source = str(fixtures / "timm_token_weights.safetensors")
    main(["convert", source, str(tmp_path / "b"), "--to", "hf", "--heads", "3"])
    assert vitkit.load(tmp_path / "b").config.heads == 3


def test_nothing_is_overwritten_by_default(fixtures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source, out = str(fixtures / "google_token_weights.npz"), tmp_path / "out.npz"
    np.savez(out, precious=np.ones(3))
    with pytest.raises(SystemExit, match="2"):
        main(["convert", source, str(out), "--to", "google"])
    assert "exists already; nothing was written" in capsys.readouterr().err
    with np.load(out) as kept:
        assert kept.files == ["precious"]
    main(["convert", source, str(out), "--to", "google", "--overwrite"])
    with np.load(out) as replaced:
        assert "cls" in replaced.files
