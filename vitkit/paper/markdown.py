"""docs/paper.md from the logs of claims: a table of verdicts, and a section for each claim."""

from __future__ import annotations

from collections.abc import Sequence

from vitkit.paper.catalogue import all_claims
from vitkit.paper.evidence import ClaimLog
from vitkit.paper.page import finding_row, judged
from vitkit.text import counted, duration


def paper_markdown(logs: Sequence[ClaimLog]) -> str:
    """Return the page as Markdown; the same logs give the same text."""
    claims = {claim.name: claim for claim in all_claims()}
    ordered = sorted((log for log in logs if log["claim"] in claims), key=lambda log: claims[log["claim"]].number)
    lines = ["| | claim | source | verdict | scale | time |", "| --- | --- | --- | --- | --- | --- |"]
    for log in ordered:
        claim = claims[log["claim"]]
        _, verdict = judged(claim, log)
        lines.append(
            f"| {claim.number} | {claim.statement} | {claim.source} | **{verdict.value}** | {log['scale']} | "
            f"{duration(log['seconds'])} |"
        )
    for log in ordered:
        claim = claims[log["claim"]]
        findings, verdict = judged(claim, log)
        lines += [
            "",
            f"## {claim.number}. {claim.statement}",
            "",
            f"**{verdict.value.capitalize()}** at {log['scale']} scale, {counted(len(log['seeds']), 'seed')}. "
            f"{claim.source}: {claim.paper}. Confirmed if {claim.rule}.",
            "",
            f"Differs from the paper: {log['differs']}.",
            "",
            f"`{log['command']}`, {duration(log['seconds'])} on {log['device']}.",
            "",
            "| | ours, with 95 % interval | paper | claimed | verdict |",
            "| --- | --- | --- | --- | --- |",
        ]
        for finding in findings:
            row = finding_row(finding)
            lines.append(
                f"| {row['question']} | {row['value']} | {row['paper']} | {row['expected']} | {row['verdict']} |"
            )
    return "\n".join(lines) + "\n"
