"""The learning rate chosen as the paper does it: a run for each on part of the pictures, the rest to judge by."""

from __future__ import annotations

from dataclasses import replace

from vitkit.config import Fit
from vitkit.data.sources.base import Data
from vitkit.errors import ConfigError
from vitkit.train import checkpoint
from vitkit.train.folder import CONFIG, RunFolder
from vitkit.train.parallel import Processes
from vitkit.train.run import Say, train

DEV = 0.1  # of the pictures, as for Pets and Flowers in the paper


def choose_rate(config: Fit, data: Data, folder: RunFolder, processes: Processes, say: Say) -> Fit:
    """The settings with the best of the candidates; runs that were finished before are not run again."""
    candidates = config.lr_candidates or (config.lr / 3, config.lr, config.lr * 3)
    if config.objective != "labels":
        raise ConfigError("--lr auto chooses by accuracy, which pre-training without labels has none of",
                          try_="a number")
    tried = []
    for rate in candidates:
        trial = RunFolder(folder.path / "rates" / f"{rate:g}")
        if processes.told(_outcome(trial) if processes.first else None) is None:
            settings = replace(config, lr=rate, choose_lr=False, dev=config.dev or DEV, out=str(trial.path), track=())
            if processes.first:
                trial.path.mkdir(parents=True, exist_ok=True)
                if not (trial.path / CONFIG).exists():
                    trial.write_config(settings)
            processes.barrier()
            train(settings, data, trial, processes, _quiet)
            trial.close()
            if processes.first:
                checkpoint.keep_only(trial.checkpoints, ())
        found = processes.told({"lr": rate, **(_outcome(trial) or {})} if processes.first else None)
        tried.append(found)
        say("tried", f"learning rate {rate:g}: {found['top1']:.2%} of the dev pictures, loss {found['loss']:.4f}")
    best = max(tried, key=lambda one: (one["top1"], -one["loss"]))
    if processes.first:
        folder.add_to_record(learning_rates=tried)
    chosen = replace(config, lr=best["lr"], choose_lr=False)
    say("chosen", f"learning rate {best['lr']:g}; now with all pictures")
    return chosen


def _outcome(trial: RunFolder) -> dict[str, float] | None:
    if not trial.finished:
        return None
    last = [line for line in trial.metrics() if line["kind"] == "score"][-1]
    return {"top1": last["top1"], "loss": last["loss"]}


def _quiet(name: str, text: str) -> None:
    """What a trial decides is what its run will say."""
