"""What a user said → every setting of a run: what means nothing is told, what was decided is decided anew."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import vitkit
from tests.test_run import TINY, fit, write_photos
from vitkit.cli.main import main
from vitkit.config import toml


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("data") / "photos", 10)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "lr_candidates=[0.1, 0.2]"], "lr_candidates would change nothing here: it is for --lr auto"),
        (["--set", "options.class_token=yes"], "class_token='yes' must be true or false"),
        (["--set", "options.eps=abc"], "eps='abc' must be a number above 0"),
    ],
)
def test_settings_that_mean_nothing_are_told(
    words: list[str], message: str, photos: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit, match="2"):
        fit(photos, *TINY, *words)
    assert message in capsys.readouterr().err


def test_options_may_be_written_as_in_python(photos: Path, tmp_path: Path):
    fit(photos, *TINY, "--out", tmp_path / "run", "--set", "options.axial=False", "options.pool=gap")
    assert vitkit.load(tmp_path / "run").config.axial is False


def test_what_a_run_decided_for_itself_is_decided_anew_by_the_next(photos: Path, tmp_path: Path):
    tiny = [word for word in TINY if word not in ("--steps", "3")]
    fit(photos, *tiny, "--epochs", "2", "--out", tmp_path / "one", "--set", "schedule.warmup=0.25")
    began = tomllib.loads((tmp_path / "one" / "config.toml").read_text())
    assert (began["steps"], began["schedule"]["warmup"], began["micro"], began["precision"]) == (8, 2, 6, "fp32")
    again = toml.read_for_another(tmp_path / "one")
    assert {"steps", "micro"}.isdisjoint(again)
    assert (again["epochs"], again["schedule"]["warmup"], again["precision"]) == (2.0, 0.25, "auto")
    fit("--config", tmp_path / "one", "--epochs", "4", "--out", tmp_path / "two")
    longer = tomllib.loads((tmp_path / "two" / "config.toml").read_text())
    assert (longer["steps"], longer["schedule"]["warmup"]) == (16, 4)
    text = (tmp_path / "one" / "config.toml").read_text()
    (tmp_path / "one" / "config.toml").write_text(text.replace("steps = 8", "steps = 5"))
    changed = toml.read_for_another(tmp_path / "one")  # somebody's own word
    assert changed["steps"] == 5
    assert "epochs" not in changed


def test_a_recipe_that_describes_a_fresh_model_starts_from_weights_too(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Its options are of the model that it would have made, not of the one that is there; dropout is told."""
    common = ("--steps", "2", "--batch", "6", "--image", "16", "--workers", "0", "--set", "schedule.warmup=0")
    main(["pretrain", str(photos), "--model", "mu/4", "--out", str(tmp_path / "pre"), *common])
    capsys.readouterr()
    main(
        [
            "pretrain",
            str(photos),
            "--recipe",
            "imagenet_pretrain",
            "--weights",
            str(tmp_path / "pre"),
            "--out",
            str(tmp_path / "again"),
            *common,
        ]
    )
    main(["fit", str(photos), "--weights", str(tmp_path / "again"), "--out", str(tmp_path / "fit"), *common])
    assert capsys.readouterr().out.count("dropout 0.1") == 2
