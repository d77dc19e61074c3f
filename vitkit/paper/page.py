"""paper.html: every claim that was run, with figure, verdict, both numbers, command, time and device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from vitkit.errors import ConfigError, VitkitError
from vitkit.grid.page import signed, unsigned
from vitkit.grid.verdict import Finding, Verdict, overall
from vitkit.pages.html import KeyFigure, write_html
from vitkit.pages.svg import inline_svg, plot_style
from vitkit.paper.catalogue import all_claims
from vitkit.paper.claim import Claim
from vitkit.paper.closed_forms import closed_forms
from vitkit.paper.evidence import ClaimLog, Evidence, describe_time, device_seconds, total_device_seconds
from vitkit.text import counted, duration

PAGE = "paper.html"
NOT_RESULTS = "at smoke scale, which says nothing about them"
Result = TypeVar("Result")
SHOWN = 8  # findings of a claim before the rest is folded away


def write_page(folder: Path, logs: Sequence[ClaimLog]) -> Path:
    """Write the page of these logs, in the order of the claims, and return its path."""
    claims = {claim.name: claim for claim in all_claims()}
    ordered = sorted((log for log in logs if log["claim"] in claims), key=lambda log: claims[log["claim"]].number)
    rows = [_claim(claims[log["claim"]], log) for log in ordered]
    verdicts = [row["verdict"] for row in rows]
    run = {log["claim"] for log in ordered}
    content: dict[str, Any] = {
        "figures": [
            KeyFigure("Claims that hold", f"{sum(Verdict(one).holds for one in verdicts)} of {len(rows)}", NOT_RESULTS)
            if all(log["scale"] == "smoke" for log in ordered)
            else KeyFigure("Claims that hold", f"{sum(Verdict(one).holds for one in verdicts)} of {len(rows)}"),
            KeyFigure("Refuted", str(verdicts.count(Verdict.REFUTED))),
            KeyFigure("Undecided", str(verdicts.count(Verdict.UNDECIDED))),
            KeyFigure("Time", duration(total_device_seconds(ordered)), ", ".join(_devices(ordered))),
        ],
        "smoke": any(log["scale"] == "smoke" for log in ordered),
        "claims": rows,
        "others": [
            {"number": claim.number, "statement": claim.statement, "source": claim.source, "command": command_of(claim)}
            for claim in claims.values()
            if claim.name not in run
        ],
        "tables": closed_forms(),
    }
    return write_html(folder / PAGE, "vitkit.paper", PAGE, content)


def command_of(claim: Claim) -> str:
    """Return the command that runs a claim at the scale whose verdict counts for one GPU."""
    return f"vitkit paper {claim.name} --scale small"


def judged(claim: Claim, log: ClaimLog) -> tuple[Sequence[Finding], Verdict]:
    """Return the findings of a log and the verdict over them."""

    def judge(evidence: Evidence) -> tuple[Sequence[Finding], Verdict]:
        findings = claim.judge(evidence)
        return findings, overall(findings)

    return _of_log(judge, claim, log)


def _of_log(function: Callable[[Evidence], Result], claim: Claim, log: ClaimLog) -> Result:
    """Return what a function makes of a log; one that has other arms or numbers than the claim is an error of ours."""
    try:
        return function(Evidence(log))
    except VitkitError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        name = f"{claim.name}-{log['scale']}.json"
        raise ConfigError(
            f"the log {name} does not have what the claim needs: {type(error).__name__} {error}.",
            try_=f"remove claims/{name}, then vitkit paper {claim.name} --scale {log['scale']}, which uses the runs "
            "that are there",
        ) from error


def _claim(claim: Claim, log: ClaimLog) -> dict[str, Any]:
    findings, verdict = judged(claim, log)

    def draw(evidence: Evidence) -> str:
        return inline_svg(claim.draw(evidence), claim.name, f"Figure of claim {claim.number}: {claim.statement}")

    with plot_style():
        figure = _of_log(draw, claim, log)
    rows = [finding_row(finding) for finding in findings]
    return {
        "number": claim.number,
        "name": claim.name,
        "statement": claim.statement,
        "source": claim.source,
        "paper": claim.paper,
        "rule": claim.rule,
        "verdict": verdict.value,
        "scale": log["scale"],
        "seeds": counted(len(log["seeds"]), "seed"),
        "differs": log["differs"],
        "findings": rows[:SHOWN],
        "more": rows[SHOWN:],
        "figure": figure,
        "command": log["command"],
        "seconds": duration(device_seconds(log)),
        "took": describe_time(log),
        "device": log["device"],
        "date": log["date"][:10],
    }


def finding_row(finding: Finding) -> dict[str, str]:
    """Return a finding as the cells of a table."""
    unit = f" {finding.unit}" if finding.unit and finding.interval.count else ""
    return {
        "question": finding.question,
        "value": _value(finding) + unit,
        "expected": finding.expected,
        "paper": finding.paper,
        "verdict": "" if finding.verdict is None else finding.verdict.value,
    }


def _value(finding: Finding) -> str:
    """Return the number with its interval; differences in points have a sign."""
    interval = finding.interval
    if interval.count and abs(interval.mean) < 0.005 and interval.high - interval.low < 0.005:
        return f"{interval.mean:.2g}"
    return signed(interval) if finding.unit == "points" else unsigned(interval)


def _devices(logs: Sequence[ClaimLog]) -> list[str]:
    return sorted({log["device"] for log in logs})
