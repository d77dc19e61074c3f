"""The cost of a comparison before it runs: steps, images, seconds and memory of every trial.

The seconds of a step are measured on the device, a few steps for each different model and batch. What a run takes
besides its steps (start, checkpoints, scoring, report) is that of trials that have run here, or a guess.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vitkit.bench.measure import Row, measure, pick_batch
from vitkit.config import toml
from vitkit.config.resolve import resolve
from vitkit.data.partition import partition
from vitkit.devices import pick_device, pick_precision
from vitkit.grid.arm import Trial
from vitkit.grid.outcome import read_outcome, status_of
from vitkit.grid.trial_runner import RUNS, TrialRunner
from vitkit.train.initial_model import initial_model
from vitkit.train.plan import count_steps

GUESSED_OVERHEAD = 3.0  # seconds of a run besides its steps
OF_THE_MODEL = ("model", "options", "image", "channels")


@dataclass(frozen=True, kw_only=True)
class TrialCost:
    trial: Trial
    done: bool  # nothing is left to run
    steps: int
    images: int
    seconds: float
    memory: int | None  # bytes on the device; None on a CPU


def estimate(trials: Sequence[Trial], runner: TrialRunner) -> list[TrialCost]:
    """Return the cost of each trial; what is shared with an earlier trial costs nothing."""
    device = pick_device(runner.device)
    overhead = _overhead(runner)
    speeds: dict[str, tuple[float, int | None]] = {}
    seen: set[Any] = set()
    rows = []
    for trial in trials:
        path = runner.path(trial)
        config, data, _ = resolve(settings_without_weights(trial), {}, open_data=runner.shared.open)
        splits = partition(data, **config.partition)
        config = count_steps(config, len(splits.train))
        steps = config.steps or 0
        done = status_of(path) != "open" or path in seen
        seen.add(path)
        classes = data.classes or ("",)  # a step of masked patches is measured as one that learns from labels
        key = json.dumps([toml.to_tables(replace(config, seed=0, data="", lr=1.0)), len(classes)], default=str)
        if key not in speeds and not done:
            model, _ = initial_model(config, classes, multilabel=data.multilabel)
            micro = min(config.micro or config.batch, pick_batch(model.config, "training", device))
            row = Row(what="training", precision=pick_precision(config.precision, device), batch=micro, compiled=False)
            result = measure(model, row, device)
            speeds[key] = (statistics.median(result.times) / micro, result.peak_bytes)
        per_image, memory = speeds.get(key, (0.0, None))
        images = steps * config.batch
        rows.append(
            TrialCost(
                trial=trial,
                done=done,
                steps=steps,
                images=images,
                seconds=0.0 if done else images * per_image + overhead,
                memory=memory if device.type == "cuda" else None,
            )
        )
    return rows


def settings_without_weights(trial: Trial) -> dict[str, Any]:
    """Return the settings with a random model of the same shape in place of another trial's."""
    settings = trial.settings()
    needed = trial.needs
    while needed is not None:
        inherited = {name: needed.arm.settings[name] for name in OF_THE_MODEL if name in needed.arm.settings}
        settings = {**inherited, "weights": needed.arm.settings.get("weights", "default"), **settings}
        needed = needed.needs
    return settings


def _overhead(runner: TrialRunner) -> float:
    """Return the median seconds outside of steps of the trials that have run in this folder."""
    runs = (runner.folder / RUNS).glob("*") if (runner.folder / RUNS).is_dir() else ()
    outcomes = [read_outcome(run) for run in runs if status_of(run) == "finished"]
    measured = [outcome.seconds - outcome.step_seconds for outcome in outcomes if outcome.step_seconds]
    return statistics.median(measured) if measured else GUESSED_OVERHEAD
