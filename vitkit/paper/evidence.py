"""The log of a claim's experiment: what ran, and every number that the verdict and the figure are made from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from vitkit.atomic import write_text
from vitkit.errors import ConfigError
from vitkit.grid.verdict import differences
from vitkit.stored_json import read_json
from vitkit.text import duration


class ArmLog(TypedDict):
    name: str
    settings: dict[str, Any]
    scores: dict[str, float]  # by seed, in points
    diverged: list[int]  # seeds
    seconds: dict[str, float]  # by seed
    step_seconds: dict[str, float]  # by seed
    images: int  # seen in training
    macs: int  # of one image, forward
    parameters: int


class ClaimLog(TypedDict):
    claim: str
    scale: Literal["smoke", "small", "paper"]
    seeds: list[int]
    differs: str
    arms: list[ArmLog]
    measured: dict[str, dict[str, Any]]  # by seed
    seconds: float  # of its runs and measurements, those that it shares with other claims included
    device_seconds: NotRequired[float]  # less than `seconds` where runs took turns on a device; not in older logs
    run_seconds: NotRequired[dict[str, float]]  # of these, those of each run, by the name of its folder
    device: str
    command: str
    date: str
    versions: dict[str, str]


class Evidence:
    """A log, with the questions that `judge` and `draw` ask of it."""

    def __init__(self, log: ClaimLog):
        self.log = log

    @property
    def scale(self) -> Literal["smoke", "small", "paper"]:
        scale: Literal["smoke", "small", "paper"] = self.log["scale"]
        return scale

    @property
    def seeds(self) -> list[int]:
        return self.log["seeds"]

    @property
    def arms(self) -> list[str]:
        return [arm["name"] for arm in self.log["arms"]]

    def arm(self, name: str) -> ArmLog:
        for arm in self.log["arms"]:
            if arm["name"] == name:
                return arm
        raise KeyError(name)

    def scores(self, name: str) -> dict[int, float]:
        """Return an arm's scores by seed; a seed that diverged has none."""
        return {int(seed): score for seed, score in self.arm(name)["scores"].items()}

    def difference(self, first: str, second: str) -> dict[int, float]:
        """Return the score of one arm minus another's, for each seed that both have."""
        return differences(self.scores(first), self.scores(second))

    def per_seed(self, number: Callable[[Mapping[str, float]], float]) -> dict[int, float]:
        """Return a number for each seed, computed from the scores of all arms; seeds that lack an arm are left out."""
        values = {}
        for seed in self.seeds:
            scores = {arm["name"]: arm["scores"].get(str(seed)) for arm in self.log["arms"]}
            complete = {name: score for name, score in scores.items() if score is not None}
            try:
                values[seed] = number(complete)
            except KeyError:  # an arm that the number needs has diverged
                continue
        return values

    def measured(self, key: str) -> dict[int, Any]:
        """Return a measured value by seed."""
        return {int(seed): values[key] for seed, values in self.log["measured"].items() if key in values}


def device_seconds(log: ClaimLog) -> float:
    """Return about how long the claim kept its device busy: runs at the same time take turns on it."""
    return log.get("device_seconds", log["seconds"])


def total_device_seconds(logs: Iterable[ClaimLog]) -> float:
    """Return about how long these claims kept their device busy together: a run that they share counts once."""
    runs: dict[str, float] = {}
    besides = 0.0
    for log in logs:
        own = log.get("run_seconds", {})
        besides += device_seconds(log) - sum(own.values())
        runs.update(own)
    return besides + sum(runs.values())


def describe_time(log: ClaimLog) -> str:
    """Return the time of a claim in words."""
    runs, device = duration(log["seconds"]), duration(device_seconds(log))
    return runs if runs == device else f"{runs} of runs, several at a time: about {device}"


def log_path(folder: Path, claim: str, scale: str) -> Path:
    return folder / "claims" / f"{claim}-{scale}.json"


def write_log(folder: Path, log: ClaimLog) -> Path:
    path = log_path(folder, log["claim"], log["scale"])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(log, indent=1) + "\n", ConfigError)
    return path


def read_log(path: Path, claim: str) -> ClaimLog:
    """Return the log of a claim from its file."""
    log: ClaimLog = read_json(path, ClaimLog, error=ConfigError)
    if log["claim"] != claim:
        raise ConfigError(f"{path} is damaged: it is the log of {log['claim']}.", try_="remove it, or restore it")
    return log
