"""A comparison in a TOML file: settings that all arms share, axes whose combinations are arms, and arms by name.

    seeds = 3
    [settings]
    data = "fashion"
    weights = "none"
    [axes]
    lr = [0.0003, 0.001, 0.003]
    "augment.randaugment" = [false, [2, 9]]
    [[arms]]
    name = "with mixup"
    augment = { mixup = 0.2 }

An axis may also be a table of named settings: [axes.size], small = { model = "Ti/4" }, large = { model = "S/4" }.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.config import toml
from vitkit.errors import ConfigError, did_you_mean
from vitkit.grid.arm import Arm

KEYS = ("title", "seeds", "baseline", "settings", "axes", "arms")
RESERVED = ("seed", "out", "device")  # settings that the comparison itself makes
MOST_TRIALS = 10_000


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A comparison: arms, seeds, and the arm that the others are compared with.

    axes   name → the labels of its values, in order, where the arms are all combinations of them
    """

    title: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    baseline: Arm
    axes: Mapping[str, Sequence[str]]

    def arm_at(self, *values: str) -> Arm:
        """Return the arm of a combination of axis values."""
        return self.arms[[*itertools.product(*self.axes.values())].index(values)]


def read_grid(path: Path) -> Grid:
    """Read and validate a comparison; nothing is ignored."""
    return parse_grid(toml.read(path), path)


def parse_grid(tables: Mapping[str, Any], path: Path) -> Grid:
    """Return the tables of a grid file as a comparison; `path` names it in errors."""
    for name in tables:
        if name not in KEYS:
            raise ConfigError(f"{path}: there is no key {name}{did_you_mean(name, KEYS)}", keys=", ".join(KEYS))
    shared = _table(tables, "settings", path)
    axes = {name: _axis(name, values, path) for name, values in _table(tables, "axes", path).items()}
    if math.prod(map(len, axes.values())) > MOST_TRIALS:
        raise ConfigError(f"{path}: the axes have over {MOST_TRIALS:,} combinations", try_="fewer axes or values")
    arms = []
    for combination in itertools.product(*(values.items() for values in axes.values())) if axes else ():
        settings = dict(shared)
        for _, change in combination:
            settings = toml.merge(settings, change)
        arms.append(_arm(", ".join(label for label, _ in combination), settings, path))
    named = tables.get("arms", [])
    if not isinstance(named, list) or not all(isinstance(one, dict) for one in named):
        raise ConfigError(f"{path}: arms are tables", try_='[[arms]] with name = "…" and settings')
    for number, table in enumerate(named, 1):
        rest = dict(table)
        name = rest.pop("name", f"arm {number}")
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{path}: the name of arm {number} should be text, not {name!r}")
        arms.append(_arm(name, toml.merge(shared, rest), path))
    if len(arms) < 2:
        raise ConfigError(
            f"{path}: a comparison needs two arms or more, and this has {len(arms)}", try_="[axes] or [[arms]]"
        )
    seeds = _seeds(tables.get("seeds", 3), path)
    if len(arms) * len(seeds) > MOST_TRIALS:
        raise ConfigError(f"{path}: {len(arms):,} arms x {len(seeds):,} seeds are over {MOST_TRIALS:,} runs")
    names = [arm.name for arm in arms]
    if twice := [name for name, number in Counter(names).items() if number > 1]:
        raise ConfigError(f"{path}: two arms are called {twice[0]!r}", try_="names of their own")
    baseline = tables.get("baseline", names[0])
    if baseline not in names:
        raise ConfigError(f"{path}: baseline = {baseline!r} is no arm{did_you_mean(str(baseline), names)}", arms=names)
    title = tables.get("title", path.stem)
    if not isinstance(title, str):
        raise ConfigError(f"{path}: title = {title!r} should be text")
    return Grid(
        title=title,
        arms=tuple(arms),
        seeds=seeds,
        baseline=arms[names.index(baseline)],
        axes={name: [*values] for name, values in axes.items()} if axes and not named else {},
    )


def _table(tables: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {name} is a table, not {table!r}")
    return table


def _axis(name: str, values: Any, path: Path) -> dict[str, dict[str, Any]]:
    """Return the values of an axis as label → settings: a name by itself, a plain value after its setting."""
    if isinstance(values, dict) and values and all(isinstance(change, dict) for change in values.values()):
        return values
    if not isinstance(values, list) or not values:
        raise ConfigError(
            f"{path}: the axis {name} should be a list of values, or a table of named settings",
            try_="lr = [0.001, 0.003]",
        )
    last = name.split(".")[-1]
    labelled = {f"{last} {str(value).lower()}": _nested(name, value) for value in values}
    if len(labelled) < len(values):
        raise ConfigError(f"{path}: the axis {name} has a value twice")
    return labelled


def _nested(key: str, value: Any) -> dict[str, Any]:
    *parents, last = key.split(".")
    table: dict[str, Any] = {last: value}
    for parent in reversed(parents):
        table = {parent: table}
    return table


def _arm(name: str, settings: Mapping[str, Any], path: Path) -> Arm:
    for reserved in RESERVED:
        if reserved in settings:
            advice = "seeds = …" if reserved == "seed" else f"vitkit grid --{reserved}"
            raise ConfigError(f"{path}: {reserved} is not a setting of an arm", try_=advice)
    if not settings.get("data"):
        raise ConfigError(f"{path}: no data named", try_='[settings] data = "…"')
    try:
        toml.check(settings)
    except ConfigError as error:
        raise ConfigError.around(f"{path}, arm {name!r}", error) from error
    return Arm(name=name, settings=settings)


def _seeds(seeds: Any, path: Path) -> tuple[int, ...]:
    if isinstance(seeds, int) and not isinstance(seeds, bool) and 1 <= seeds <= MOST_TRIALS:
        return tuple(range(seeds))
    integers = isinstance(seeds, list) and all(isinstance(one, int) and not isinstance(one, bool) for one in seeds)
    if not integers or not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"{path}: seeds = {seeds!r} should be a number of seeds, or a list of them", try_="seeds = 3")
    return tuple(seeds)
