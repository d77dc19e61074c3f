"""Run all trials of a comparison, on one device or several; killed anywhere, the same call goes on."""

from collections.abc import Sequence
from pathlib import Path

from vitkit.grid.arm import Trial
from vitkit.grid.outcome import Outcome, read_outcome, status_of
from vitkit.grid.processes import run_in_processes
from vitkit.grid.trial_runner import Report, TrialRunner


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
        run_in_processes(left, runner, devices, report)
    else:
        for trial in left:
            ran = runner.run(trial)
            report(trial, read_outcome(paths[trial]), ran)
    return {trial: read_outcome(path) for trial, path in paths.items()}
