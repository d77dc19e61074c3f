"""Run the trials of a comparison, each as an ordinary run in a folder of its own; killed anywhere, it goes on.

Trials that two comparisons share have one folder, named by their settings and data, and run once. One process runs
trial after trial, so that data are opened, searched for copies and kernels built once. With several devices, or
several jobs on a CPU, there is one such process for each.
"""

from __future__ import annotations

import io
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitkit.data.partition import fingerprint
from vitkit.data.sources.splits import training_split
from vitkit.errors import VitkitError
from vitkit.grid.arm import Trial
from vitkit.grid.outcome import WALL, Outcome, read_outcome, status_of
from vitkit.run import resume, start_run
from vitkit.run_folder import RunFolder
from vitkit.shared_data import SharedData
from vitkit.train.loop import Diverged
from vitkit.weights.run_checkpoints import complete_checkpoints

RUNS = "runs"  # the folder of all trials, in that of the comparison

Report = Callable[[Trial, Outcome, bool], None]  # called after each trial; the last: whether it ran now


class TrialError(VitkitError):
    """A trial that cannot run, for a reason other than divergence."""


class TrialRunner:
    """Runs trials in this process, one after the other.

    folder   of the comparison; trials have theirs under runs/ in it
    device   as the setting of that name
    """

    def __init__(self, folder: Path, device: str = "auto"):
        self.folder, self.device = folder, device
        self.shared = SharedData()

    def path(self, trial: Trial) -> Path:
        """Return the run folder of a trial."""
        return self.folder / RUNS / trial.identity(self._fingerprint)

    def run(self, trial: Trial) -> bool:
        """Run a trial, or go on with it; return False if there was nothing left to do."""
        path = self.path(trial)
        if status_of(path) != "open":
            return False
        started = time.monotonic()
        before = RunFolder(path).record().get(WALL, 0.0)
        try:
            self._start_or_resume(trial, path)
        except Diverged as error:
            RunFolder(path).add_to_record(diverged=str(error))
        except VitkitError as error:
            raise TrialError(
                f"the arm {trial.arm.name!r} with seed {trial.seed} cannot run: {error}",
                then="the same command goes on where it stopped",
            ) from error
        RunFolder(path).add_to_record(**{WALL: round(before + time.monotonic() - started, 3)})
        return True

    def _start_or_resume(self, trial: Trial, path: Path) -> None:
        log = io.StringIO()  # the run keeps its decisions in its own record
        folder = RunFolder(path)
        if folder.finished and "finished" in folder.record():  # stopped between the last file and our own record
            return
        if folder.finished or complete_checkpoints(folder.checkpoints):
            resume(path, log, device=self.device, shared=self.shared)
            return
        if path.exists():  # killed before its first checkpoint: there is nothing to go on with
            with_lock = RunFolder(path)
            with_lock.lock()
            with_lock.close()
            shutil.rmtree(path)
        settings = trial.settings()
        if trial.needs is not None:
            settings["weights"] = str(self.path(trial.needs))
        command = shlex.join(["vitkit", "fit", *_as_options(settings)])
        settings = {"device": self.device, **settings, "out": str(path)}
        start_run(settings, settings, log, command, self.shared)

    def _fingerprint(self, settings: Mapping[str, Any]) -> str:
        data = self.shared.open(settings["data"], label=settings.get("label"), group=settings.get("group"))
        return fingerprint(data, training_split(data))


def run_trials(
    trials: Sequence[Trial], folder: Path, *, devices: Sequence[str] = ("auto",), report: Report
) -> dict[Trial, Outcome]:
    """Run all trials on the devices, one trial each at a time, and return their outcomes."""
    runner = TrialRunner(folder, devices[0])
    paths = {trial: runner.path(trial) for trial in trials}
    first = {path: trial for trial, path in reversed(paths.items())}  # arms with equal settings have one run
    left = [trial for trial, path in paths.items() if first[path] == trial and status_of(path) == "open"]
    for trial, path in paths.items():
        if trial not in left and status_of(path) != "open":
            report(trial, read_outcome(path), False)
    if len(devices) > 1 and len(left) > 1:
        from vitkit.grid.processes import run_in_processes

        run_in_processes(left, runner, devices, report)
    else:
        for trial in left:
            ran = runner.run(trial)
            report(trial, read_outcome(paths[trial]), ran)
    return {trial: read_outcome(path) for trial, path in paths.items()}


def _as_options(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as the command line has them, so that a trial can be run again by hand."""
    settings = dict(settings)
    options = [str(settings.pop("data"))]
    options += ["--seed", str(settings.pop("seed"))]
    pairs = [f"{name}={_plain(value)}" for name, value in _flat(settings).items()]
    return [*options, "--set", *pairs] if pairs else options


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, (tuple, list)) else str(value)
