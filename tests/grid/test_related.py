"""The comparison of examples/related.toml: its arms cost the same."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from vitkit.config.model_options import configure_model
from vitkit.cost import cost
from vitkit.grid.arm import Arm
from vitkit.grid.grid_file import read_grid
from vitkit.model.build import build_on_meta

ROOT = Path(__file__).parents[2]
RELATED = read_grid(ROOT / "examples" / "related.toml")


def macs(arm: Arm) -> int:
    settings = dict(arm.settings)
    return cost(configure_model(settings.pop("model"), settings, classes=10)).macs


@pytest.mark.parametrize("arm", RELATED.arms, ids=lambda arm: arm.name)
def test_an_arm_costs_as_much_as_the_vit_within_5_percent(arm: Arm):
    assert macs(arm) == pytest.approx(macs(RELATED.baseline), rel=0.05)


def test_the_arms_differ_in_the_model_alone():
    of_the_model = {"model", "options", "image"}
    rest = [{name: value for name, value in arm.settings.items() if name not in of_the_model} for arm in RELATED.arms]
    assert all(settings == rest[0] for settings in rest)
    assert len(RELATED.seeds) == 3
    assert RELATED.baseline.settings["model"].startswith("Ti/")


def test_the_arms_of_the_sets_are_models_without_positions_or_with_positions_between_patches():
    sets = read_grid(ROOT / "docs" / "related" / "sets.toml")
    configs = {}
    for arm in sets.arms:
        settings = dict(arm.settings)
        configs[arm.name] = configure_model(settings.pop("model"), settings, classes=10)
        build_on_meta(configs[arm.name])
    assert {name for name, config in configs.items() if config.positions == "none"} == {
        name for name in configs if name.startswith("a set")
    }


def test_the_page_has_the_table_of_the_file_and_of_the_results(tmp_path: Path):
    script = runpy.run_path(str(ROOT / "docs/related/table.py"))
    written = (ROOT / "docs/related.md").read_text(encoding="utf-8")
    table = written.split(script["BEGIN"])[1].split(script["END"])[0]
    assert table == script["table"](), "python docs/related/table.py --write updates docs/related.md"
    results = tmp_path / "results.json"
    difference = {"mean": 1.5, "low": 1.0, "high": 2.0}
    settings = next(dict(arm.settings) for arm in RELATED.arms if arm.name == "BoTNet")
    arm = {"name": "BoTNet", "scores": {"0": 80.0, "1": 81.0}, "difference": difference, "verdict": "higher"}
    results.write_text(json.dumps({"arms": [{**arm, "settings": {**settings, "data": "cifar10.npz"}}]}))
    assert "| 80.50 (80.00, 81.00) | +1.50 (+1.00 to +2.00), higher |" in script["table"](results)
    results.write_text(json.dumps({"arms": [{**arm, "settings": {**settings, "epochs": 60}}]}))
    assert "80.50" not in script["table"](results)  # other settings than the file's: not run yet
