"""`vitkit list settings` and docs/settings.md name every setting, with the recipes that set it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from tests.config.test_toml import TYPED
from vitkit.cli.main import main
from vitkit.config.listing import list_settings
from vitkit.config.recipes import RECIPES
from vitkit.config.schema import Fit
from vitkit.config.toml import assignments, from_tables, merge, to_tables
from vitkit.errors import ConfigError
from vitkit.model.config import ViTConfig
from vitkit.model.variants import configure

ROOT = Path(__file__).parents[2]


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main(["list", *words])
    return capsys.readouterr().out


def test_every_setting_is_listed_with_a_meaning():
    settings = list_settings()
    plain = [setting.name for setting in settings if not setting.name.startswith("options.")]
    assert sorted(plain) == sorted(TYPED)  # what the command line can set
    assert all(len(setting.meaning) > 8 and setting.default for setting in settings)


def test_the_values_of_recipes_are_those_that_lead_to_them():
    """Setting what is listed for a recipe, on top of the defaults, gives the recipe itself."""
    settings = list_settings()
    for name, recipe in RECIPES.items():
        pairs = [f"{setting.name}={setting.recipes[name]}" for setting in settings if name in setting.recipes]
        pairs = [pair for pair in pairs if not pair.startswith(("options=", "lr_candidates="))]  # words without quotes
        tables = merge({"optimizer": {"kind": "sgd"}}, assignments(pairs))
        whole = recipe()
        expected = {**to_tables(whole), "options": {}, "lr_candidates": []}
        assert to_tables(from_tables({**tables, "options": {}})) | {"lr_candidates": []} == expected, name


@pytest.mark.parametrize("pattern", ["mixup", "freeze", "balance", "layer_decay", "patience", "resize", "MIXUP"])
def test_a_setting_is_found_by_its_name(pattern: str, capsys: pytest.CaptureFixture[str]):
    lines = listed(capsys, "settings", pattern).splitlines()
    assert any(line.rpartition(".")[2] == pattern.lower() for line in lines)
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("early stopping", "patience"),
        ("rare classes", "balance"),
        ("Polyak", "average"),
        ("random crop", "augment.crop"),
    ],
)
def test_a_setting_is_found_by_its_meaning(words: str, name: str):
    assert name in {setting.name for setting in list_settings(words)}


def test_a_pattern_that_nothing_has_is_an_error_with_the_nearest_name():
    with pytest.raises(
        ConfigError, match=r"no setting has 'mixupp' in its name or meaning; did you mean augment.mixup"
    ):
        list_settings("mixupp")


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]):
    (mixup,) = json.loads(listed(capsys, "settings", "mixup:", "--json"))["settings"]
    assert mixup["name"] == "augment.mixup"
    assert mixup["default"] == "0"
    assert mixup["range"] == "0 or more"
    assert mixup["recipes"]["large_transfer"] == "0.1"


def test_recipes_are_listed(capsys: pytest.CaptureFixture[str]):
    everything = listed(capsys, "recipes")
    assert all(f"{name}\n" in everything for name in RECIPES)
    assert "94.43" in listed(capsys, "recipes", "pets_transfer")
    with pytest.raises(SystemExit) as stopped:
        main(["list", "recipes", "pets_transfr"])
    assert stopped.value.code == 2
    assert "did you mean pets_transfer" in capsys.readouterr().err


def test_the_help_of_fit_names_the_list(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    assert "vitkit list settings" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_the_page_of_settings_is_what_its_script_prints():
    printed = subprocess.run(
        [sys.executable, "docs/settings.py"], cwd=ROOT, capture_output=True, text=True, encoding="utf-8", timeout=60
    ).stdout
    page = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    assert page == printed, "python docs/settings.py --write updates docs/settings.md"


def test_options_of_the_architecture_are_listed_as_create_takes_them():
    listed = {setting.name.removeprefix("options."): setting for setting in list_settings("options.")}
    assert listed.keys() == {item.name for item in fields(ViTConfig)} - {item.name for item in fields(Fit)} - {
        "stem",  # of the model's name
        "classes",  # of the data
        "eps",
    }
    for name in ("positions", "gelu", "norm"):
        for choice in listed[name].range.split(" | "):
            assert getattr(configure("Ti/16", pool="gap", **{name: choice}), name) == choice
