"""What a user said → every setting of a run: over the recipe that was named, or that fits the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitkit.config import toml
from vitkit.config.recipes import pick_recipe, recipe
from vitkit.config.schema import Fit
from vitkit.data.partition import partition
from vitkit.data.sources import fashion
from vitkit.data.sources.base import Data
from vitkit.data.sources.open import open_data
from vitkit.data.sources.splits import fitting_split
from vitkit.errors import ConfigError
from vitkit.train.initial_model import resolve_weights


def resolve(over: Mapping[str, Any], said: Mapping[str, Any] | None = None) -> tuple[Fit, Data, str]:
    """The toml, the data, and why that recipe. What was `said` just now, all of it unless told, has to be of use; a
    file may come from another run."""
    if not over.get("data"):
        raise ConfigError("no data named", try_="vitkit fit FOLDER, or data = … in the --config file")
    data = open_data(over["data"], label=over.get("label"))
    named = over.get("recipe", "")
    nothing = over.get("weights", "default") == "none"
    pictures = len(data.splits[fitting_split(data)])
    name, reason = (
        (named, "as asked")
        if named
        else pick_recipe(pictures, objective=over.get("objective", "labels"), from_nothing=nothing)
    )
    chosen = toml.to_tables(recipe(name, over.get("model") or None))
    if over.get("weights", "default") not in ("default", "none") and not over.get("model"):
        chosen["model"] = ""  # the weights say which
    if over.get("weights", "default") not in ("default", "none"):
        chosen = {name: value for name, value in chosen.items() if name not in ("options", "channels")}  # and how built
    config = toml.from_tables(toml.merge(chosen, over))
    _refuse_unused(over if said is None else said, config, data)
    if Path(config.data).exists() and config.data != fashion.NAME:  # a run is resumed from anywhere
        config = replace(config, data=str(Path(config.data).absolute()))
    return resolve_weights(config), data, f"{name}: {reason}"


def _refuse_unused(said: Mapping[str, Any], config: Fit, data: Data) -> None:
    """Settings that this run would not look at."""
    masked = config.objective == "masked-patch"
    if "masked" in said and not masked:
        raise _unused("masked", "objective = masked-patch")
    if "timescale" in said.get("schedule", {}) and config.schedule.kind != "rsqrt":
        raise _unused("schedule.timescale", "schedule.kind = rsqrt")
    for name in ("lr_candidates", "lr_dev"):
        if name in said and not config.choose_lr:
            raise _unused(name, "--lr auto")
    if "test" in said and not masked and partition(data, **config.partition).held_out is None:
        raise _unused("test", "data without pictures to score, and these have some")


def _unused(name: str, needed: str) -> ConfigError:
    return ConfigError(f"{name} would change nothing here: it is for {needed}", try_=f"leave {name} out")
