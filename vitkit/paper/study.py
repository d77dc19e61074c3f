"""Several claims in one folder: run them, estimate them, list their verdicts; trials that they share run once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vitkit.grid.arm import Trial, trials_of
from vitkit.grid.estimate import TrialCost, estimate
from vitkit.grid.runner import Runner
from vitkit.grid.trial_runner import Report, TrialRunner
from vitkit.grid.verdict import Verdict
from vitkit.paper.catalogue import all_claims
from vitkit.paper.claim import Claim, Scale
from vitkit.paper.datasets import Datasets
from vitkit.paper.evidence import ClaimLog, log_path, read_log
from vitkit.paper.page import judged, write_page
from vitkit.paper.run_claim import run_claim

SCALES: tuple[Scale, ...] = ("smoke", "small", "paper")


def run_claims(
    claims: Sequence[Claim],
    scale: Scale,
    folder: Path,
    datasets: Datasets,
    *,
    devices: Sequence[str],
    command: str,
    versions: Mapping[str, str],
    report: Report,
) -> tuple[dict[str, ClaimLog], Path]:
    """Run the claims one after the other; return their logs, and the page of all claims in the folder."""
    for claim in claims:
        claim.setup(scale, datasets)  # a data set that is missing is an error before the first run
    logs = {}
    with Runner(folder, devices) as runner:
        for claim in claims:
            logs[claim.name] = run_claim(
                claim, scale, runner, datasets, command=command, versions=versions, report=report
            )
    return logs, write_page(folder, latest_logs(folder))


def estimate_claims(
    claims: Sequence[Claim], scale: Scale, folder: Path, datasets: Datasets, device: str
) -> dict[str, list[TrialCost]]:
    """Return the cost of every trial of every claim; one that an earlier claim has as well costs nothing."""
    runner = TrialRunner(folder, device)
    trials: dict[str, list[Trial]] = {}
    for claim in claims:
        setup = claim.setup(scale, datasets)
        trials[claim.name] = trials_of(setup.arms, setup.seeds)
    costs = iter(estimate([trial for some in trials.values() for trial in some], runner))
    return {name: [next(costs) for _ in some] for name, some in trials.items()}


def latest_logs(folder: Path) -> list[ClaimLog]:
    """Return the log of each claim at the largest scale that was run in the folder."""
    found = []
    for claim in all_claims():
        paths = [log_path(folder, claim.name, scale) for scale in reversed(SCALES)]
        path = next((path for path in paths if path.is_file()), None)
        if path is not None:
            found.append(read_log(path, claim.name))
    return found


def verdicts(folder: Path) -> dict[str, tuple[Verdict, str]]:
    """Return the verdict of each claim that was run in the folder, and its scale."""
    claims = {claim.name: claim for claim in all_claims()}
    return {log["claim"]: (judged(claims[log["claim"]], log)[1], log["scale"]) for log in latest_logs(folder)}
