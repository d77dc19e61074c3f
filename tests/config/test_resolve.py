"""Resolving settings: an unused setting is an error, and a new run decides anew what an old one decided."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import vitkit
from tests.test_run import TINY, fit, write_photos
from vitkit.cli.main import main
from vitkit.config import toml
from vitkit.config.resolve import resolve, resolve_weights
from vitkit.config.schema import Fit
from vitkit.errors import ConfigError
from vitkit.weights.public import DEFAULTS


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("data") / "photos", 10)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "priors=data"], "priors would change nothing here: it is for balance above 0"),
        (["--set", "lr_candidates=[0.1, 0.2]"], "lr_candidates would change nothing here: it is for --lr auto"),
        (["--set", "options.class_token=yes"], "class_token='yes' must be true or false"),
        (["--set", "options.eps=abc"], "eps='abc' must be a number above 0"),
    ],
)
def test_settings_without_effect_are_refused(
    words: list[str], message: str, photos: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit, match="2"):
        fit(photos, *TINY, *words)
    assert message in capsys.readouterr().err


def test_options_can_be_written_as_in_python(photos: Path, tmp_path: Path):
    fit(photos, *TINY, "--out", tmp_path / "run", "--set", "options.axial=False", "options.pool=gap")
    assert vitkit.load(tmp_path / "run").config.axial is False


def test_what_a_run_decided_itself_is_decided_anew_by_the_next(photos: Path, tmp_path: Path):
    tiny = [word for word in TINY if word not in ("--steps", "3")]
    fit(photos, *tiny, "--epochs", "2", "--out", tmp_path / "one", "--set", "schedule.warmup=0.25")
    began = tomllib.loads((tmp_path / "one" / "config.toml").read_text())
    assert (began["steps"], began["schedule"]["warmup"], began["micro"], began["precision"]) == (8, 2, 6, "fp32")
    settings = toml.read_for_new_run(tmp_path / "one")
    assert {"steps", "micro"}.isdisjoint(settings)
    assert (settings["epochs"], settings["schedule"]["warmup"], settings["precision"]) == (2.0, 0.25, "auto")
    fit("--config", tmp_path / "one", "--epochs", "4", "--out", tmp_path / "two")
    longer = tomllib.loads((tmp_path / "two" / "config.toml").read_text())
    assert (longer["steps"], longer["schedule"]["warmup"]) == (16, 4)
    text = (tmp_path / "one" / "config.toml").read_text()
    (tmp_path / "one" / "config.toml").write_text(text.replace("steps = 8", "steps = 5"))
    changed = toml.read_for_new_run(tmp_path / "one")  # edited by the user
    assert changed["steps"] == 5
    assert "epochs" not in changed


def test_a_recipe_that_describes_an_untrained_model_can_start_from_weights(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Its options describe the model that it would build and are dropped; its dropout is used and printed."""
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


def test_default_weights_are_the_public_checkpoint_of_the_variant():
    for model, public in DEFAULTS.items():
        assert resolve_weights(Fit(model=model)) == Fit(model=model, weights=public.source)
    assert resolve_weights(Fit()).model == "Ti/16"
    assert resolve_weights(Fit(weights="none")).model == "Ti/16"
    assert resolve_weights(Fit(weights="hf:a/b")) == Fit(weights="hf:a/b")


def test_a_variant_without_public_weights_is_an_error():
    with pytest.raises(ConfigError) as error:
        resolve_weights(Fit(model="g/14"))
    for text in ("no public weights are known for g/14", "--weights none", "--weights PATH", "Ti/16"):
        assert text in str(error.value)
    with pytest.raises(ConfigError, match="there is no model 'Tii/16'; did you mean Ti/16"):
        resolve_weights(Fit(model="Tii/16"))


def test_a_path_of_weights_becomes_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "mine.npz").touch()
    monkeypatch.chdir(tmp_path)
    assert resolve_weights(Fit(weights="mine.npz")).weights == str(tmp_path / "mine.npz")
    assert resolve_weights(Fit(weights="other.npz")).weights == "other.npz"


# The head of pre-training (3.1) and that of fine-tuning (3.2)


def test_pre_training_from_labels_has_a_tanh_layer_and_fitting_a_linear_head(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    short = [*TINY[2:], "--set", "options.width=24", "options.heads=2"]
    main(["pretrain", str(photos), "--objective", "labels", *short, "--out", str(tmp_path / "pre")])
    assert "head of pre-training (3.1): tanh layer of 24, then 3 classes" in capsys.readouterr().out
    before = vitkit.load(tmp_path / "pre")
    assert before.config.representation == 24
    assert toml.read(tmp_path / "pre")["options"]["representation"] == 24  # a repeated run has it, too
    fit(photos, "--weights", tmp_path / "pre", *TINY[4:], "--set", "start=full", "--out", tmp_path / "fit")
    assert "tanh layer of 24 dropped, linear head 3 → 3 classes, zero-initialised" in capsys.readouterr().out
    after = vitkit.load(tmp_path / "fit")
    assert after.config.representation is None
    assert [*after.head.state_dict()] == ["logits.weight", "logits.bias"]
    fit(photos, *TINY, "--out", tmp_path / "scratch")
    assert "randomly initialised, linear head, 3 classes" in capsys.readouterr().out
    assert vitkit.load(tmp_path / "scratch").config.representation is None


def test_the_layer_of_pre_training_follows_settings_and_recipes():
    def options(**settings: object) -> object:
        return resolve({"data": "fashion", "weights": "none", **settings}, pretraining=True)[0].options

    assert options(model="S/16") == {"representation": 384}
    assert options(model="S/16", options={"representation": False}) == {"representation": False}
    assert options(model="S/16", options={"representation": 100}) == {"representation": 100}
    assert options(recipe="large_scratch", model="B/16") == {"representation": 768}
    assert options(recipe="jft_pretrain", model="L/16") == {"representation": 1024}
    assert options(recipe="augreg_pretrain", model="S/16") == {"representation": False}
    assert options(model="R50x1") == {}
    assert options(model="S/16", objective="masked-patch") == {}
    assert resolve({"data": "fashion", "weights": "none", "model": "S/16"})[0].options == {}


def test_the_tanh_layer_can_be_left_out(photos: Path, tmp_path: Path):
    words = [
        "--objective",
        "labels",
        *TINY[2:],
        "--set",
        "options.representation=false",
        "--out",
        str(tmp_path / "pre"),
    ]
    main(["pretrain", str(photos), *words])
    assert vitkit.load(tmp_path / "pre").config.representation is None
