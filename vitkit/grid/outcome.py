"""The outcome of a trial, read from its run folder: a score, or that it diverged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitkit.evaluate.segmentation_evaluation import read_evaluation
from vitkit.run_folder import CARD, EVALUATION, MODEL, REPORT, RunFolder

WALL = "trial_seconds"  # key of the record: of the whole trial, over all attempts
ON_DEVICE = "device_seconds"  # of those, its share of the device where several trials had it at a time
Status = Literal["finished", "diverged", "open"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a trial. `score` is in points, 0 to 100; None where the run diverged or has nothing to score on."""

    run: Path
    status: Status
    score: float | None
    seconds: float  # of the whole trial
    device_seconds: float  # of those, its share of a device that several trials had at a time
    step_seconds: float  # of its steps
    images: int  # seen in training
    device: str

    @property
    def overhead(self) -> float:
        """The share of the trial that was not spent in steps."""
        return 1 - self.step_seconds / self.seconds if self.seconds else 0.0


def status_of(run: Path) -> Status:
    record = RunFolder(run).record()
    if "diverged" in record:
        return "diverged"
    return "finished" if is_complete(run) and WALL in record else "open"


def is_complete(run: Path) -> bool:
    """Return whether the run itself is over: trained, scored and reported."""
    return "finished" in RunFolder(run).record() and all((run / name).is_file() for name in (MODEL, REPORT, CARD))


def read_outcome(run: Path) -> Outcome:
    folder = RunFolder(run)
    record, status = folder.record(), status_of(run)
    score = None
    if status == "finished" and (run / EVALUATION).is_file():
        score = 100 * read_evaluation(run / EVALUATION).headline.value
    plan = record.get("plan", {})
    images = int(plan.get("steps", 0)) * int(plan.get("batch", 0))
    rates = [line.get("images_per_second") for line in folder.metrics() if line["kind"] == "speed"]
    return Outcome(
        run=run,
        status=status,
        score=score,
        seconds=record.get(WALL, 0.0),
        device_seconds=record.get(ON_DEVICE, record.get(WALL, 0.0)),
        step_seconds=images / rates[-1] if rates and rates[-1] else 0.0,
        images=images,
        device=record.get("device", ""),
    )
