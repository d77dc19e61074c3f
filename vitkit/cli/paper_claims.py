"""The claims of the verb `paper`: run them, estimate them, print their verdicts."""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.cli.options import print_json
from vitkit.cli.training_options import log_stream

if TYPE_CHECKING:
    from vitkit.grid.arm import Trial
    from vitkit.grid.estimate import TrialCost
    from vitkit.grid.outcome import Outcome
    from vitkit.paper.claim import Claim, Scale
    from vitkit.paper.closed_forms import ClosedForm
    from vitkit.paper.datasets import Datasets

FOLDER = Path("runs/paper")
WIDTH = 100


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
    from vitkit.grid.devices import advise_mps, pick_devices
    from vitkit.messages import print_line, say
    from vitkit.paper.catalogue import find_claims
    from vitkit.paper.datasets import Datasets
    from vitkit.paper.evidence import describe_time
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
    if advice := advise_mps(devices):
        say("note", advice, file=stream)

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
        print_line(f"   {verdict.value} at {scale} scale, {describe_time(logs[claim.name])}")
        for finding in findings if len(claims) == 1 else ():
            row = finding_row(finding)
            end = "" if finding.verdict is None else f"; claimed {row['expected']}: {row['verdict']}"
            print_line(f"   {row['question']}: {row['value']}{end}")
    say("report", str(page))


def _print_estimate(
    claims: Sequence[Claim], scale: Scale, folder: Path, datasets: Datasets, devices: Sequence[str], json: bool
) -> None:
    from vitkit.grid.devices import parallel
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
                "arms": _arm_costs(left),
            }
        )
    seconds = sum(row["seconds"] for row in rows) / parallel(devices)
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
        for arm in row["arms"]:
            print_line(
                f"  {arm['name']}: {arm['runs']} runs of {arm['steps']:,} steps, {arm['images']:,} images, "
                f"about {duration(arm['seconds'])} each"
            )
    print_line("")
    print_line(f"about {duration(seconds)} with {len(devices)} at a time, without measurements")


def _arm_costs(left: Sequence[TrialCost]) -> list[dict[str, Any]]:
    """Return what is left of each arm: its runs, and steps, images and seconds of one of them."""
    arms: dict[str, list[TrialCost]] = {}
    for cost in left:
        arms.setdefault(cost.trial.arm.name, []).append(cost)
    return [
        {
            "name": name,
            "runs": len(costs),
            "steps": costs[0].steps,
            "images": costs[0].images,
            "seconds": sum(cost.seconds for cost in costs) / len(costs),
        }
        for name, costs in arms.items()
    ]


def claim_rows(folder: Path | None) -> list[dict[str, Any]]:
    """Return all claims with the paper's numbers, our verdict where there is one, and about what a run costs."""
    from dataclasses import asdict

    from vitkit.paper.catalogue import all_claims
    from vitkit.paper.rough_cost import rough_cost
    from vitkit.paper.study import SCALES, verdicts

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
            "cost": {scale: asdict(rough_cost(claim, scale)) for scale in SCALES},
        }
        for claim in all_claims()
    ]


def print_claims(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the claims: what is claimed, the paper's number, our verdict and the cost at each scale."""
    from vitkit.messages import print_line
    from vitkit.paper.rough_cost import describe_estimate, rough_duration

    for row in rows:
        verdict = f"{row['verdict']} at {row['scale']} scale" if row["verdict"] else "not run here"
        costs = [
            f"{scale}: {cost['runs'] or 'no'} runs, about {rough_duration(cost['seconds'])}"
            for scale, cost in row["cost"].items()
        ]
        _print_wrapped(f"{row['number']:>2}  {row['name']}: {row['statement']}", 4)
        _print_wrapped(f"    paper {row['paper']} ({row['source']})", 10)
        _print_wrapped(f"    ours  {verdict}", 10)
        _print_wrapped(f"    cost  {'; '.join(costs)}", 10)
    print_line("")
    _print_wrapped(describe_estimate(), 0)


def _print_wrapped(text: str, indent: int) -> None:
    from vitkit.messages import print_line

    for line in textwrap.wrap(text, WIDTH, subsequent_indent=" " * indent):
        print_line(line)


def print_closed_forms(forms: Sequence[ClosedForm]) -> None:
    """Print the tables that need no training, and how many of their rows agree."""
    from vitkit.messages import print_line

    for form in forms:
        print_line(f"    {form.name}: {form.statement}")
        print_line(f"    {'ours':<6}{form.verdict}; {form.command}")


def closed_form_rows(forms: Sequence[ClosedForm]) -> list[dict[str, Any]]:
    """Return the tables for JSON."""
    return [
        {
            "name": form.name,
            "statement": form.statement,
            "unit": form.unit,
            "verdict": form.verdict,
            "rows": [
                {"name": row.name, "paper": row.paper, "ours": row.ours, "ratio": row.ratio, "remark": row.remark}
                for row in form.rows
            ],
        }
        for form in forms
    ]
