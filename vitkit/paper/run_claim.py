"""Run a claim at a scale: train its arms, take its measurements, and write the log."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch

from vitkit.atomic import write_text
from vitkit.devices import describe_device, pick_device
from vitkit.errors import ConfigError
from vitkit.grid.arm import Arm, Trial, trials_of
from vitkit.grid.outcome import Outcome
from vitkit.grid.runner import Runner
from vitkit.grid.trial_runner import Report
from vitkit.paper.claim import Claim, Measuring, Scale, Setup
from vitkit.paper.datasets import Datasets
from vitkit.paper.evidence import ArmLog, ClaimLog, write_log
from vitkit.run_folder import RunFolder
from vitkit.stored_json import read_json
from vitkit.text import utc_timestamp

MEASURED = "measured"  # the folder of measurements, in that of the experiments


class Numbers(TypedDict):
    """The numbers of a measurement as far as they are the same for all claims."""

    seconds: float


class MeasuredRecord(TypedDict):
    """The content of a file of measurements: the names of the runs that they are of, and the numbers."""

    runs: dict[str, str]
    numbers: Numbers


def run_claim(
    claim: Claim,
    scale: Scale,
    runner: Runner,
    datasets: Datasets,
    *,
    command: str,
    versions: Mapping[str, str],
    report: Report,
) -> ClaimLog:
    """Run what is left of a claim's experiment and return its log, which is written to the runner's folder, too."""
    folder, device = runner.folder, runner.devices[0]
    setup = claim.setup(scale, datasets)
    trials = trials_of(setup.arms, setup.seeds)
    outcomes = runner.run(trials, report) if trials else {}
    measured = _measure(claim, scale, folder, datasets, device, setup, outcomes)
    measuring = sum(one["seconds"] for one in measured.values())
    seconds = sum(outcome.seconds for outcome in outcomes.values()) + measuring
    on_device = sum(outcome.device_seconds for outcome in outcomes.values()) + measuring
    here = describe_device(pick_device(device), torch.get_num_threads())  # of measurements, without a run
    used = sorted({outcome.device for outcome in outcomes.values() if outcome.device}) or [here]
    log = ClaimLog(
        claim=claim.name,
        scale=scale,
        seeds=list(setup.seeds),
        differs=setup.differs,
        arms=[_arm_log(arm, setup.seeds, outcomes) for arm in dict.fromkeys(trial.arm for trial in trials)],
        measured={str(seed): dict(numbers) for seed, numbers in measured.items()},
        seconds=round(seconds, 1),
        device_seconds=round(on_device, 1),
        run_seconds={outcome.run.name: round(outcome.device_seconds, 1) for outcome in outcomes.values()},
        device=", ".join(used),
        command=command,
        date=utc_timestamp(),
        versions=dict(versions),
    )
    write_log(folder, log)
    return log


def _measure(
    claim: Claim,
    scale: Scale,
    folder: Path,
    datasets: Datasets,
    device: str,
    setup: Setup,
    outcomes: Mapping[Trial, Outcome],
) -> dict[int, dict[str, Any]]:
    """Take the measurements of each seed, or read those that are there."""
    if claim.measure is None:
        return {}
    measured = {}
    for seed in setup.seeds:
        runs = {
            arm.name: outcomes[Trial(arm, seed)].run
            for arm in setup.arms
            if outcomes[Trial(arm, seed)].status == "finished"
        }
        path = folder / MEASURED / f"{claim.name}-{scale}-seed{seed}.json"
        measured[seed] = measured_once(
            path,
            {name: run.name for name, run in runs.items()},
            lambda seed=seed, runs=runs: claim.measure(  # type: ignore[misc]
                Measuring(scale=scale, seed=seed, datasets=datasets, device=device, runs=runs)
            ),
        )
    return measured


def measured_once(path: Path, inputs: Mapping[str, str], measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Return the numbers in the file if they are of the same runs; measure and write them otherwise."""
    if path.is_file():
        try:
            content: dict[str, Any] = read_json(path, MeasuredRecord, error=ConfigError)
        except ConfigError as error:
            error.add(try_=f"remove {path}, then the same command measures again")
            raise
        if content["runs"] == dict(inputs):
            numbers: dict[str, Any] = content["numbers"]
            return numbers
    started = time.monotonic()
    numbers = {**measure()}
    numbers["seconds"] = round(time.monotonic() - started, 2)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({"runs": dict(inputs), "numbers": numbers}) + "\n", ConfigError)
    return numbers


def _arm_log(arm: Arm, seeds: Sequence[int], outcomes: Mapping[Trial, Outcome]) -> ArmLog:
    ran = {seed: outcomes[Trial(arm, seed)] for seed in seeds}
    records = [RunFolder(outcome.run).record() for outcome in ran.values()]
    record = next((record for record in records if "macs" in record), {})  # one that never began has no plan
    settings = json.loads(json.dumps(arm.settings, default=str))
    settings["data"] = Path(str(settings["data"])).name  # logs are published, and folders are the user's own
    if arm.weights_from is not None:
        settings["weights"] = f"those of {arm.weights_from.name}"
    return ArmLog(
        name=arm.name,
        settings=settings,
        scores={str(seed): round(outcome.score, 4) for seed, outcome in ran.items() if outcome.score is not None},
        diverged=[seed for seed, outcome in ran.items() if outcome.status == "diverged"],
        seconds={str(seed): round(outcome.seconds, 2) for seed, outcome in ran.items()},
        step_seconds={str(seed): round(outcome.step_seconds, 2) for seed, outcome in ran.items()},
        images=max(outcome.images for outcome in ran.values()),
        macs=int(record.get("macs", 0)),
        parameters=int(record.get("parameters", 0)),
    )
