"""Learning rate search as in the paper: a trial run for each candidate, scored on held-out images."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from vitkit.config.objectives import OBJECTIVES
from vitkit.config.schema import Fit
from vitkit.data.partition import partition
from vitkit.data.sources.dataset import Data
from vitkit.errors import ConfigError, Interrupted
from vitkit.progress import PrintLine
from vitkit.run_folder import CONFIG, METRICS, RunError, RunFolder
from vitkit.train import checkpoint
from vitkit.train.cache import ImagesInMemory
from vitkit.train.distributed import Processes
from vitkit.train.loop import Diverged
from vitkit.train.trainer import check_patience, check_settings_unchanged, train

Rank = Callable[[Mapping[str, Any]], tuple[float, float]]  # of a result, the higher the better


def search_lr(
    config: Fit,
    data: Data,
    folder: RunFolder,
    processes: Processes,
    print_line: PrintLine,
    images: ImagesInMemory,
) -> Fit:
    """Return the settings with the best candidate; trials that are finished are not repeated."""
    candidates = config.lr_candidates or (config.lr / 3, config.lr, config.lr * 3)
    if not config.labelled:
        raise ConfigError("--lr auto needs labels; this run has none.", try_="--lr with a number")
    if config.start == "head":
        raise ConfigError("start = head has no learning rate to choose", try_="--set start=full")
    config = replace(config, start="full")
    check_settings_unchanged(config, folder)
    check_patience(config, partition(data, **config.partition))  # fail before the first trial, not in the last run
    metric, title = OBJECTIVES[config.objective].metric, OBJECTIVES[config.objective].metric_title
    rank = partial(_rank, None if data.multilabel else metric)
    trials = []
    for lr in candidates:
        trial = RunFolder(folder.path / "rates" / f"{lr:g}")
        if processes.broadcast(trial_result(trial, metric, rank) if processes.is_rank_zero else None) is None:
            try:
                _run_trial(trial, replace(config, lr=lr), data, processes, images)
            except Interrupted as stopped:
                raise Interrupted(
                    f"stopped while trying learning rate {lr:g}; vitkit resume {folder.path} continues from there",
                    stopped.code,
                ) from stopped
        result = processes.broadcast(
            {"lr": lr, **(trial_result(trial, metric, rank) or {})} if processes.is_rank_zero else None
        )
        trials.append(result)
        print_line(
            "tried",
            f"learning rate {lr:g}: "
            + (
                "diverged"
                if result["loss"] is None
                else f"{result[metric]:.2%} {title} on the held-out images, loss {result['loss']:.4f}"
            ),
        )
    if processes.is_rank_zero:
        folder.add_to_record(learning_rates=trials)
    usable = [one for one in trials if one["loss"] is not None]
    if not usable:
        raise RunError(
            f"every learning rate of {', '.join(f'{lr:g}' for lr in candidates)} diverged.",
            try_="--set lr_candidates=… with lower ones",
        )
    best = max(usable, key=rank)
    chosen = replace(config, lr=best["lr"], choose_lr=False)
    splits = partition(data, **chosen.partition)
    # with a val split in the data, the trials have trained on all images already
    print_line(
        "chosen",
        f"learning rate {best['lr']:g}"
        + f"; now training on {'all images' if splits.subset is None else 'the subset of all images'}"
        * (splits.validation is None),
    )
    return chosen


def _run_trial(trial: RunFolder, config: Fit, data: Data, processes: Processes, images: ImagesInMemory) -> None:
    """Run or resume a trial; record if it diverges."""
    settings = replace(config, choose_lr=False, dev=config.dev or config.lr_dev, out=str(trial.path), track=())
    if processes.broadcast((trial.path / CONFIG).exists()):  # resumed, with the micro-batch that was chosen then
        settings = replace(trial.config(), device=config.device, workers=config.workers)
    elif processes.is_rank_zero:
        trial.path.mkdir(parents=True, exist_ok=True)
    try:
        train(settings, data, trial, processes, _quiet, images)
    except Diverged as trouble:
        if processes.is_rank_zero:
            trial.add_to_record(diverged=str(trouble))
    finally:
        trial.close()
    if processes.is_rank_zero:
        checkpoint.keep_only(trial.checkpoints, ())


def trial_result(trial: RunFolder, metric: str, rank: Rank) -> dict[str, float | None] | None:
    """Return the result of the weights that the trial kept, with loss None if it diverged; None before its end."""
    if "diverged" in trial.record():
        return {metric: 0.0, "loss": None}
    if not trial.finished:
        return None
    scores = [line for line in trial.metrics() if line["kind"] == "score" and _is_score(line, metric)]
    if not scores:
        raise RunError(
            f"{trial.path / METRICS} is damaged: it has no validation score.",
            try_=f"remove {trial.path}, then the same command runs this trial again",
        )
    kept = max(scores, key=rank) if trial.config().patience else scores[-1]
    return {metric: kept[metric], "loss": kept["loss"] if math.isfinite(kept["loss"]) else None}


def _is_score(line: Mapping[str, Any], metric: str) -> bool:
    return all(isinstance(line.get(name), (int, float)) for name in (metric, "loss"))


def _rank(metric: str | None, result: Mapping[str, Any]) -> tuple[float, float]:
    """Rank as the loop does: by the metric, where there is one, then by loss."""
    return (0.0 if metric is None else result[metric], -result["loss"])


def _quiet(name: str, text: str) -> None:
    """Print nothing: the final run prints the same decisions."""
