"""The learning rate chosen as the paper does it: a run for each on part of the pictures, the rest to judge by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from vitkit.config.schema import Fit
from vitkit.data.partition import partition
from vitkit.data.sources.base import Data
from vitkit.errors import ConfigError, Interrupted
from vitkit.run_folder import CONFIG, RunError, RunFolder
from vitkit.train import checkpoint
from vitkit.train.distributed import Processes
from vitkit.train.loop import Diverged
from vitkit.train.trainer import Say, check_patience, check_unchanged, train


def choose_rate(config: Fit, data: Data, folder: RunFolder, processes: Processes, say: Say) -> Fit:
    """The settings with the best of the candidates; runs that were finished before are not run again."""
    candidates = config.lr_candidates or (config.lr / 3, config.lr, config.lr * 3)
    if config.objective != "labels":
        raise ConfigError(
            "--lr auto chooses by accuracy, which pre-training without labels has none of", try_="a number"
        )
    check_unchanged(config, folder)
    check_patience(
        config, partition(data, **config.partition)
    )  # what the last run would refuse is better known before the first
    tried = []
    for rate in candidates:
        trial = RunFolder(folder.path / "rates" / f"{rate:g}")
        if processes.broadcast(_outcome(trial, data.multilabel) if processes.first else None) is None:
            try:
                _run(trial, replace(config, lr=rate), data, processes)
            except Interrupted as stopped:
                raise Interrupted(
                    f"stopped while trying learning rate {rate:g}; vitkit resume {folder.path} goes on from there",
                    stopped.code,
                ) from stopped
        found = processes.broadcast(
            {"lr": rate, **(_outcome(trial, data.multilabel) or {})} if processes.first else None
        )
        tried.append(found)
        say(
            "tried",
            f"learning rate {rate:g}: "
            + (
                "diverged"
                if found["loss"] is None
                else f"{found['top1']:.2%} of the dev pictures, loss {found['loss']:.4f}"
            ),
        )
    if processes.first:
        folder.add_to_record(learning_rates=tried)
    usable = [one for one in tried if one["loss"] is not None]
    if not usable:
        raise RunError(
            f"every learning rate of {', '.join(f'{rate:g}' for rate in candidates)} diverged.",
            try_="--set lr_candidates=… with lower ones",
        )
    best = max(usable, key=partial(_merit, data.multilabel))
    chosen = replace(config, lr=best["lr"], choose_lr=False)
    # where the data have a val split of their own, the trial has seen all there is to fit
    say(
        "chosen",
        f"learning rate {best['lr']:g}"
        + "; now with all pictures" * (partition(data, **chosen.partition).validation is None),
    )
    return chosen


def _run(trial: RunFolder, config: Fit, data: Data, processes: Processes) -> None:
    """A trial, or the rest of it; one that diverges is remembered as that."""
    settings = replace(config, choose_lr=False, dev=config.dev or config.lr_dev, out=str(trial.path), track=())
    if processes.broadcast((trial.path / CONFIG).exists()):  # begun before, in parts that fitted then
        settings = replace(trial.config(), device=config.device, workers=config.workers)
    elif processes.first:
        trial.path.mkdir(parents=True, exist_ok=True)
    try:
        train(settings, data, trial, processes, _quiet)
    except Diverged as trouble:
        if processes.first:
            trial.add_to_record(diverged=str(trouble))
    finally:
        trial.close()
    if processes.first:
        checkpoint.keep_only(trial.checkpoints, ())


def _outcome(trial: RunFolder, multilabel: bool) -> dict[str, float | None] | None:
    """Of the weights that the trial kept; None before its end, a loss of None for one that diverged."""
    if "diverged" in trial.record():
        return {"top1": 0.0, "loss": None}
    if not trial.finished:
        return None
    looks = [line for line in trial.metrics() if line["kind"] == "score"]
    kept = max(looks, key=partial(_merit, multilabel)) if trial.config().patience else looks[-1]
    return {"top1": kept["top1"], "loss": kept["loss"] if math.isfinite(kept["loss"]) else None}


def _merit(multilabel: bool, found: Mapping[str, Any]) -> tuple[float, float]:
    """As the loop sees it; of two rates that are right as often, the surer one."""
    return (0.0 if multilabel else found["top1"], -found["loss"])


def _quiet(name: str, text: str) -> None:
    """What a trial decides is what its run will say."""
