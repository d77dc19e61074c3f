"""Run one trial after the other in this process, each as an ordinary run in a folder of its own.

Trials that two comparisons share have one folder, named by their settings and data, and run once. Data are opened,
searched for copies and decoded, and kernels built once for all of them.
"""

from __future__ import annotations

import io
import shlex
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vitkit.data.partition import fingerprint
from vitkit.data.sources.splits import training_split
from vitkit.errors import VitkitError
from vitkit.grid.arm import Trial
from vitkit.grid.outcome import ON_DEVICE, WALL, Outcome, is_complete, status_of
from vitkit.run import resume, start_run
from vitkit.run_folder import RunFolder
from vitkit.shared_data import SharedData
from vitkit.train.cache import ImagesInMemory, SharedCaches
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
    jobs     how many runners share the device
    """

    def __init__(self, folder: Path, device: str = "auto", jobs: int = 1):
        self.folder, self.device, self.jobs = folder, device, jobs
        self.shared = SharedData(ImagesInMemory(caches=SharedCaches()))

    def path(self, trial: Trial) -> Path:
        """Return the run folder of a trial."""
        return self.folder / RUNS / trial.identity(self._fingerprint)

    def run(self, trial: Trial) -> bool:
        """Run a trial, or go on with it; return False if there was nothing left to do."""
        path = self.path(trial)
        if status_of(path) != "open":
            return False
        if trial.needs is not None and status_of(self.path(trial.needs)) == "diverged":
            path.mkdir(parents=True, exist_ok=True)
            RunFolder(path).add_to_record(
                diverged=f"the run that it starts from: {trial.needs.arm.name}", **{WALL: 0.0}
            )
            return True
        started = time.monotonic()
        record = RunFolder(path).record()
        before, before_on_device = record.get(WALL, 0.0), record.get(ON_DEVICE, record.get(WALL, 0.0))
        try:
            self._start_or_resume(trial, path)
        except Diverged as error:
            RunFolder(path).add_to_record(diverged=str(error))
        except VitkitError as error:
            stopped = TrialError.around(f"the arm {trial.arm.name!r} with seed {trial.seed} cannot run", error)
            stopped.add(then="the same command goes on where it stopped")
            raise stopped from error
        took = time.monotonic() - started
        times = {WALL: before + took, ON_DEVICE: before_on_device + took / self.jobs}
        RunFolder(path).add_to_record(**{name: round(seconds, 3) for name, seconds in times.items()})
        return True

    def _start_or_resume(self, trial: Trial, path: Path) -> None:
        log = io.StringIO()  # the run keeps its decisions in its own record
        folder = RunFolder(path)
        if is_complete(path):  # killed before its time was recorded
            return
        if folder.finished or complete_checkpoints(folder.checkpoints):
            resume(path, log, device=self.device, shared=self.shared)
            return
        if path.exists():  # killed before its first checkpoint: there is nothing to go on with
            folder.lock()  # an error if another process is at it
            shutil.rmtree(path)
            folder.close()
        settings = trial.settings()
        if trial.needs is not None:
            settings["weights"] = str(self.path(trial.needs))
        command = shlex.join(["vitkit", "fit", *_as_options(settings)])
        settings = {"device": self.device, **settings, "out": str(path)}
        start_run(settings, settings, log, command, shared=self.shared)

    def _fingerprint(self, settings: Mapping[str, Any]) -> str:
        data = self.shared.open(settings["data"], label=settings.get("label"), group=settings.get("group"))
        return fingerprint(data, training_split(data))


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
