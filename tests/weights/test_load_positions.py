"""Position embeddings of weights that are loaded at another image size, from Python and from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.ndimage
import torch
from PIL import Image

import vitkit
from tests.model.kinds import images_for, make
from vitkit.cli.main import main
from vitkit.config import toml
from vitkit.errors import ConfigError, SizeError


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Return weights for 32 px, 4 x 4 patches and a class token."""
    vitkit.save(make("token"), tmp_path / "weights")
    return tmp_path / "weights"


def table_of(model: vitkit.Model) -> np.ndarray:
    return model.encoder.positions[0].table.detach().numpy()


def test_by_default_positions_equal_scipys_zoom(weights: Path):
    old, new = table_of(vitkit.load(weights)), table_of(vitkit.load(weights, image=(48, 56)))
    theirs = scipy.ndimage.zoom(old[1:].reshape(4, 4, -1), (6 / 4, 7 / 4, 1), order=1)
    np.testing.assert_allclose(new[1:], theirs.reshape(42, -1), atol=1e-6)
    np.testing.assert_array_equal(new[0], old[0])


def test_stretched_positions_equal_numpys_interpolation(weights: Path, caplog: pytest.LogCaptureFixture):
    old, new = table_of(vitkit.load(weights)), table_of(vitkit.load(weights, image=48, positions="stretch"))
    where = np.linspace(0, 15, 36)
    theirs = np.stack([np.interp(where, np.arange(16), column) for column in old[1:].T], axis=1)
    np.testing.assert_allclose(new[1:], theirs, atol=1e-6)
    np.testing.assert_array_equal(new[0], old[0])
    assert "32 → 48 px, positions stretched in 1-D (4 x 4 → 6 x 6), paper" in caplog.text


def test_fresh_positions_replace_the_table_at_any_size(weights: Path, caplog: pytest.LogCaptureFixture):
    old = vitkit.load(weights)
    torch.manual_seed(1)
    new = vitkit.load(weights, positions="fresh")
    torch.manual_seed(1)
    assert np.array_equal(table_of(vitkit.load(weights, positions="fresh")), table_of(new))
    assert not np.isclose(table_of(new), table_of(old)).any(axis=1).all()
    assert "positions re-initialised (4 x 4)" in caplog.text
    assert vitkit.load(weights, image=64, positions="fresh").config.image == (64, 64)


def test_kept_positions_refuse_another_grid(weights: Path):
    assert np.array_equal(table_of(vitkit.load(weights, image=32, positions="keep")), table_of(vitkit.load(weights)))
    with pytest.raises(SizeError, match="cannot be kept"):
        vitkit.load(weights, image=64, positions="keep")
    with pytest.raises(ConfigError, match="positions='bilinear' is not known"):
        vitkit.load(weights, positions="bilinear")


# Relative positions at another size, in every verb


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("photos")
    for index in range(24):
        name = ("cat", "dog")[index % 2]
        path = folder / ("test" if index % 4 > 1 else "train") / name / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(path)
    return folder


FAST = ("--steps", "2", "--batch", "4", "--device", "cpu", "--workers", "0")


def fit(photos: Path, out: Path, weights: Path, *more: str) -> Path:
    main(["fit", str(photos), "--weights", str(weights), "--out", str(out), *FAST, *more])
    return out


@pytest.mark.parametrize("kind", ["relative", "sincos1d"])
def test_a_model_is_loaded_fitted_predicted_with_and_exported_at_another_size(
    kind: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    vitkit.save(make(kind), tmp_path / "weights")
    loaded = vitkit.load(tmp_path / "weights", image=(32, 48))
    assert loaded(images_for(loaded)).shape == (2, 10)
    run = fit(photos, tmp_path / "run", tmp_path / "weights", "--image", "32", "48")
    assert ("interpolated in 2-D" if "relative" in kind else "computed anew") in capsys.readouterr().out
    some = str(photos / "test" / "cat")
    main(["predict", str(run), some, "--json", "--image", "40", "--device", "cpu"])
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {answer["label"] for answer in answers} <= {"cat", "dog"}
    main(["export", str(run), "--image", "40", "--to", "pt2", "--out", str(tmp_path / "model.pt2"), "--json"])
    exported = json.loads(capsys.readouterr().out)
    assert exported["comparison"]["images"] > 0


def test_a_run_records_how_it_loaded_positions(photos: Path, weights: Path, tmp_path: Path, capsys):
    run = fit(photos, tmp_path / "run", weights, "--image", "48", "--set", "load_positions=stretch", "start=full")
    assert "positions stretched in 1-D (4 x 4 → 6 x 6)" in capsys.readouterr().out
    assert toml.read(run)["load_positions"] == "stretch"
    record = json.loads((run / "run.json").read_text())
    assert any("positions stretched in 1-D" in text for _, text in record["decisions"])


def test_fresh_positions_of_a_run_follow_its_seed(photos: Path, weights: Path, tmp_path: Path):
    tables = []
    for seed, name in ((0, "a"), (0, "b"), (1, "c")):
        run = fit(photos, tmp_path / name, weights, "--seed", str(seed), "--set", "load_positions=fresh", "freeze=-1")
        tables.append(table_of(vitkit.load(run)))  # frozen: only the head is trained
    assert np.array_equal(tables[0], tables[1])
    assert not np.array_equal(tables[0], tables[2])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "load_positions=keep", "--image", "48"], "the positions cannot be kept"),
        (["--set", "load_positions=bicubic"], "load_positions"),
        (["--set", "load_positions=fresh", "--weights", "none"], "load_positions would change nothing here"),
    ],
)
def test_a_mistake_in_the_setting_is_a_message(
    words: list[str], message: str, photos: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit, match="2"):
        main(["fit", str(photos), "--weights", str(weights), "--out", str(tmp_path / "run"), *FAST, *words])
    assert message in capsys.readouterr().err
