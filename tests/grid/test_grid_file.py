"""Grid files: all combinations of the axes, arms by name, and errors that name the key."""

from __future__ import annotations

import contextlib
import itertools
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitkit.errors import ConfigError
from vitkit.grid.grid_file import parse_grid

BASE = 'settings = { data = "fashion", weights = "none" }\n'


def parse(text: str):
    return parse_grid(tomllib.loads(text), Path("rates.toml"))


def test_arms_are_all_combinations_of_the_axes():
    grid = parse(
        BASE + '[axes]\nlr = [0.001, 0.003]\n"augment.mixup" = [0.0, 0.2]\n'
        '[axes.size]\nsmall = { model = "Ti/4" }\nlarge = { model = "S/4", batch = 128 }\n'
    )
    expected = list(itertools.product((0.001, 0.003), (0.0, 0.2), ("Ti/4", "S/4")))
    found = [(arm.settings["lr"], arm.settings["augment"]["mixup"], arm.settings["model"]) for arm in grid.arms]
    assert found == expected
    assert grid.arms[0].name == "lr 0.001, mixup 0.0, small"
    assert grid.arm_at("lr 0.003", "mixup 0.2", "large") == grid.arms[-1]
    assert grid.baseline == grid.arms[0]
    assert grid.seeds == (0, 1, 2)


def test_arms_by_name_change_the_shared_settings():
    grid = parse(
        'seeds = [5, 7]\nbaseline = "plain"\n'
        + BASE
        + '[[arms]]\nname = "plain"\n[[arms]]\nname = "gap"\noptions = { pool = "gap" }\n'
    )
    assert [arm.name for arm in grid.arms] == ["plain", "gap"]
    assert grid.arms[1].settings == {"data": "fashion", "weights": "none", "options": {"pool": "gap"}}
    assert grid.seeds == (5, 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sedes = 3\n", "did you mean seeds"),
        (BASE, "two arms or more, and this has 0"),
        ('settings = { weights = "none" }\naxes = { lr = [1, 2] }', "no data named"),
        (BASE + "axes = { lrr = [0.1, 0.2] }", "lr"),
        (BASE + "axes = { lr = [0.1, 0.1] }", "a value twice"),
        (BASE + "axes = { lr = 0.1 }", "should be a list"),
        (BASE + "axes = { seed = [1, 2] }", "seeds = "),
        ("seeds = 0\n" + BASE + "axes = { lr = [0.1, 0.2] }", "seeds = 0"),
        ("seeds = [1, 1]\n" + BASE + "axes = { lr = [0.1, 0.2] }", "seeds ="),
        ('baseline = "lr 0.3"\n' + BASE + "axes = { lr = [0.1, 0.2] }", "is no arm"),
        (BASE + '[[arms]]\nname = "a"\n[[arms]]\nname = "a"', "two arms are called 'a'"),
        (BASE + 'axes = { lr = ["high", "low"] }', "lr"),
    ],
)
def test_a_mistake_in_the_file_is_named(text, message):
    with pytest.raises(ConfigError, match=r"rates\.toml") as caught:
        parse(text)
    assert message in str(caught.value)


def test_a_setting_of_an_arm_is_explained_on_lines_of_its_own():
    with pytest.raises(ConfigError) as caught:
        parse(BASE + "axes = { subset = [0.5, 500] }")
    first, *details = str(caught.value).splitlines()
    assert first == "rates.toml, arm 'subset 500': subset = 500: more than 0 and at most 1 is needed"
    assert details[0].startswith("  meaning  share of the training images")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(["title", "seeds", "baseline", "settings", "axes", "arms", "other"])


@given(st.dictionaries(keys, values, max_size=6))
def test_whatever_the_file_holds_the_only_error_is_ours(tables):
    if isinstance(tables.get("settings"), dict):
        tables["settings"]["data"] = "fashion"
    with contextlib.suppress(ConfigError):
        parse_grid(tables, Path("rates.toml"))
