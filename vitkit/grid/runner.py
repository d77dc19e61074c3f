"""Run all trials of a comparison, on one device or several; killed anywhere, the same call goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from vitkit.grid.arm import Trial
from vitkit.grid.outcome import Outcome, read_outcome, status_of
from vitkit.grid.processes import TrialProcesses
from vitkit.grid.trial_runner import Report, TrialRunner


class Runner:
    """Runs the trials of comparisons in a folder, one at a time for each name among the devices.

    Comparisons that follow one another share data, caches and processes.
    """

    def __init__(self, folder: Path, devices: Sequence[str] = ("auto",)):
        self.folder, self.devices = folder, devices
        self.here = TrialRunner(folder, devices[0])
        self.processes = TrialProcesses(folder, devices) if len(devices) > 1 else None

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.processes is not None:
            self.processes.close()

    def run(self, trials: Sequence[Trial], report: Report) -> dict[Trial, Outcome]:
        """Run the trials that have not run yet and return the outcomes of all."""
        paths = {trial: self.here.path(trial) for trial in trials}
        first = {path: trial for trial, path in reversed(paths.items())}  # arms with equal settings have one run
        left = [trial for trial, path in paths.items() if first[path] == trial and status_of(path) == "open"]
        for trial, path in paths.items():
            if trial not in left and status_of(path) != "open":
                report(trial, read_outcome(path), False)
        if self.processes is not None and len(left) > 1:
            self.processes.run(left, self.here, report)
        else:
            for trial in left:
                ran = self.here.run(trial)
                report(trial, read_outcome(paths[trial]), ran)
        return {trial: read_outcome(path) for trial, path in paths.items()}


def run_trials(
    trials: Sequence[Trial], folder: Path, *, devices: Sequence[str] = ("auto",), report: Report
) -> dict[Trial, Outcome]:
    """Run all trials of one comparison on the devices and return their outcomes."""
    with Runner(folder, devices) as runner:
        return runner.run(trials, report)
