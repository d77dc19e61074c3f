"""The comparison of examples/related.toml: its arms cost the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitkit.config.model_options import configure_model
from vitkit.cost import cost
from vitkit.grid.arm import Arm
from vitkit.grid.grid_file import read_grid

RELATED = read_grid(Path(__file__).parents[2] / "examples" / "related.toml")


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
