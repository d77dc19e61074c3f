"""The types of run.json and metrics.jsonl, by which they are checked when they are read back."""

from pathlib import Path
from typing import Any, Required, TypedDict

from vitkit.data.contents import ContentsRecord
from vitkit.data.groups import TogetherRecord
from vitkit.data.partition import HeldOutRecord
from vitkit.data.subset import SubsetRecord
from vitkit.stored_json import Error, conform, parse_json

MOST_LINE = 1 << 20  # bytes of a line of metrics.jsonl


_ImageCounts = TypedDict("_ImageCounts", {"pictures": dict[str, int]}, total=False)  # noqa: UP013


class DataRecord(_ImageCounts, total=False):
    name: str
    kind: str
    classes: int
    notes: list[str]
    fingerprint: str
    counts: dict[str, dict[str, int]]
    contents: ContentsRecord  # runs of earlier versions have none


class PlanRecord(TypedDict, total=False):
    steps: int
    epochs: float
    batch: int
    micro: int
    accumulate: int
    processes: int


class CheckpointWaitRecord(TypedDict, total=False):
    written: int
    seconds: float
    share: float  # of the time of the last session of the run


class HeadRecord(TypedDict, total=False):
    images: int
    l2: float
    accuracy: float | None
    loss: float | None


class TrialRecord(TypedDict, total=False):
    lr: Required[float]
    top1: float | None
    map: float | None
    mean_iou: float | None
    loss: float | None


class RunJson(TypedDict, total=False):
    """The content of run.json; every key is written by some step of a run, so a run that was stopped lacks some."""

    command: str
    started: str
    finished: str | None
    recipe_reason: str
    data: DataRecord
    together: TogetherRecord
    asked: dict[str, Any]
    settings: dict[str, Any]
    versions: dict[str, str]
    machine: str
    device: str
    objective: str
    precision: str
    processes: int
    split: HeldOutRecord | None
    subset: SubsetRecord | None
    parameters: int
    macs: int
    plan: PlanRecord
    head: HeadRecord
    fine_tuning_seconds: float
    learning_rates: list[TrialRecord]
    diverged: str
    decisions: list[tuple[str, str]]
    seconds: float
    repeated_requests: int  # to the stores of remote data
    trained_counts: dict[str, int]
    kept_step: int | None
    stopped_early: bool
    checkpoint_wait: CheckpointWaitRecord  # runs of earlier versions have none
    lost_best: str  # why the weights are not those with the best score
    thresholds: str
    license: str
    trial_seconds: float  # of a trial of vitkit.grid


class MetricsLine(TypedDict):
    kind: str
    step: int


class _SkippedImage(MetricsLine):
    image: str
    reason: str


# as vitkit 0.1.0 wrote it
_OldSkippedImage = TypedDict(  # noqa: UP013
    "_OldSkippedImage", {"kind": str, "step": int, "picture": str, "reason": str}
)


class _RollBack(MetricsLine):
    to: int
    what: str


_OTHER_LINES: dict[str, Any] = {"left-out": _SkippedImage | _OldSkippedImage, "rolled-back": _RollBack}


def parse_metrics_line(text: str, origin: str, error: Error) -> dict[str, Any]:
    """Return a line of metrics.jsonl; all but the kind of most lines are numbers."""
    line: dict[str, Any] = parse_json(text, MetricsLine, origin, error=error)
    if line["kind"] in _OTHER_LINES:
        conform(line, _OTHER_LINES[line["kind"]], origin, error=error)
    else:
        numbers = {name: value for name, value in line.items() if name != "kind"}
        conform(numbers, dict[str, float | None], origin, error=error)
    return line


def line_name(path: Path, number: int) -> str:
    return f"line {number:,} of {path}"
