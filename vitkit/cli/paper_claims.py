"""The claims of the verb `paper`: run them, estimate them, print their verdicts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.cli.options import print_json
from vitkit.cli.training_options import log_stream

if TYPE_CHECKING:
    from vitkit.grid.arm import Trial
    from vitkit.grid.outcome import Outcome
    from vitkit.paper.claim import Claim, Scale
    from vitkit.paper.datasets import Datasets

FOLDER = Path("runs/paper")


def run(
    name: str,
    *,
    scale: Scale,
    data: Path,
    out: Path | None,
    dry_run: bool,
    jobs: int | None,
    device: str | None,
    json: bool,
) -> None:
    """Run a claim, or all of them, and print the verdicts."""
    from vitkit.grid.devices import pick_devices
    from vitkit.messages import print_line, say
    from vitkit.paper.catalogue import find_claims
    from vitkit.paper.datasets import Datasets
    from vitkit.paper.page import finding_row, judged
    from vitkit.paper.study import run_claims
    from vitkit.run import versions
    from vitkit.text import duration

    claims, folder, datasets = find_claims(name), out or FOLDER, Datasets(data)
    devices = pick_devices(device or "auto", jobs)
    if dry_run:
        _print_estimate(claims, scale, folder, datasets, devices, json)
        return
    stream = log_stream(json)

    def report(trial: Trial, outcome: Outcome, ran: bool) -> None:
        result = outcome.status if outcome.score is None else f"{outcome.score:.2f} %"
        took = duration(outcome.seconds) if ran else "already run"
        say("run", f"{trial.arm.name}, seed {trial.seed}: {result} ({took})", file=stream)

    command = shlex.join(["vitkit", *sys.argv[1:]])
    logs, page = run_claims(
        claims, scale, folder, datasets, devices=devices, command=command, versions=versions(), report=report
    )
    results = {claim.name: judged(claim, logs[claim.name]) for claim in claims}
    if json:
        content = {
            name: {"verdict": verdict.value, "findings": [finding_row(finding) for finding in findings]}
            for name, (findings, verdict) in results.items()
        }
        print_json("paper", {"scale": scale, "claims": content, "page": str(page)})
        return
    print_line("")
    for claim in claims:
        findings, verdict = results[claim.name]
        print_line(f"{claim.number}. {claim.statement}")
        print_line(f"   {verdict.value} at {scale} scale, {duration(logs[claim.name]['seconds'])}")
        for finding in findings if len(claims) == 1 else ():
            row = finding_row(finding)
            end = "" if finding.verdict is None else f"; claimed {row['expected']}: {row['verdict']}"
            print_line(f"   {row['question']}: {row['value']}{end}")
    say("report", str(page))


def _print_estimate(
    claims: Sequence[Claim], scale: Scale, folder: Path, datasets: Datasets, devices: Sequence[str], json: bool
) -> None:
    from vitkit.messages import print_line
    from vitkit.paper.study import estimate_claims
    from vitkit.text import duration

    costs = estimate_claims(claims, scale, folder, datasets, devices[0])
    rows: list[dict[str, Any]] = []
    for claim in claims:
        left = [cost for cost in costs[claim.name] if not cost.done]
        rows.append(
            {
                "claim": claim.name,
                "runs": len(costs[claim.name]),
                "left": len(left),
                "steps": sum(cost.steps for cost in left),
                "images": sum(cost.images for cost in left),
                "seconds": sum(cost.seconds for cost in left),
            }
        )
    seconds = sum(row["seconds"] for row in rows) / len(devices)
    if json:
        print_json("paper", {"scale": scale, "claims": rows, "seconds": seconds})
        return
    width = max(len(row["claim"]) for row in rows)
    for row in rows:
        cost = (
            f"{row['steps']:,} steps, {row['images']:,} images, about {duration(row['seconds'])}" if row["left"] else ""
        )
        runs = f"{row['left']} of {row['runs']} runs left" if row["runs"] else "measurements only"
        print_line(f"{row['claim']:<{width}}  {runs}{', ' * bool(cost)}{cost}")
    print_line("")
    print_line(f"about {duration(seconds)} with {len(devices)} at a time, without measurements")


def claim_rows(folder: Path | None) -> list[dict[str, Any]]:
    """Return all claims with the paper's numbers, our verdict where there is one, and the size of a run."""
    from vitkit.paper.catalogue import all_claims
    from vitkit.paper.study import verdicts

    found = verdicts(folder or FOLDER)
    return [
        {
            "number": claim.number,
            "name": claim.name,
            "statement": claim.statement,
            "source": claim.source,
            "paper": claim.paper,
            "verdict": found[claim.name][0].value if claim.name in found else None,
            "scale": found[claim.name][1] if claim.name in found else None,
        }
        for claim in all_claims()
    ]
