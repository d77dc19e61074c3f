"""docs/paper.md from the logs of claims: how to run them, a table of all claims, and a section for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vitkit.paper.catalogue import all_claims
from vitkit.paper.claim import Claim
from vitkit.paper.closed_forms import ClosedForm, closed_forms
from vitkit.paper.evidence import ClaimLog, describe_time
from vitkit.paper.page import command_of, finding_row, judged
from vitkit.paper.rough_cost import describe_estimate, rough_cost, rough_duration
from vitkit.text import counted

NOT_RUN = "not run yet"
HEAD = """\
# The paper's claims, run

`vitkit paper` runs the claims of "An Image is Worth 16x16 Words", and questions that its readers ask, as experiments:
arms over seeds, each arm an ordinary run, and a verdict beside the paper's own number.

```sh
vitkit paper                             # all claims: the paper's figure, our verdict, what a run costs
vitkit paper rollout --scale smoke       # one claim, by its name or number
vitkit paper 12,13 --scale smoke         # several; runs that they share are trained once
vitkit paper axial --dry-run             # its arms, steps, images and time on this machine, and nothing runs
```

| `--scale` | for | data |
| --- | --- | --- |
| `smoke` | seconds on two cores; shows that it runs, and nothing about the claim | inside the package |
| `small` | minutes to hours on one GPU | `--data DIR`, with `tiny-imagenet-200/`, `cifar100/`, `pets/`, … |
| `paper` | the paper's own settings, for those who have its data and machines | `--data DIR` |

`all` in place of a name runs every claim. Runs are in `--out`, by default `runs/paper`; those that claims share are
trained once, and the same command goes on after an interruption, even after `kill -9`. `paper.html` there shows every
claim with its figure, verdict, numbers, command, seconds and device.

**The verdict.** Differences are taken within a seed; their mean over seeds has a 95 % t-interval. *Confirmed*: the
interval excludes 0 (or the number that the rule names) with the paper's sign. *Equal*, where equality is claimed: all
of it lies within ±1 point. *Refuted*: it excludes that. *Undecided*: neither. The rules below were fixed before any
run, and negative results stay.

Trimaps of Pets, for claim 13, are read as published, `pets/annotations/trimaps/NAME.png` beside `pets/images/`, or from
a folder or .zip `trimaps` beside `pets/`. Border pixels are left out. `python benchmarks/claims_data.py DIR` makes
Tiny-ImageNet, CIFAR-100, Pets and the trimaps from their published folders, re-encoded to 0.3 GB together.

`python docs/paper.py --write` makes this page from the logs in `docs/paper/`, which are the files of
`runs/paper/claims/`; logs of the smoke scale are no results and are refused there.
"""


def paper_markdown(logs: Sequence[ClaimLog]) -> str:
    """Return the page as Markdown; the same logs give the same text."""
    by_claim = {log["claim"]: log for log in logs}
    claims = all_claims()
    lines = [
        HEAD,
        "## Verdicts",
        "",
        "| | claim | source | verdict | one GPU | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for claim in claims:
        log = by_claim.get(claim.name)
        verdict = NOT_RUN if log is None else f"**{judged(claim, log)[1].value}** at {log['scale']} scale"
        small = rough_cost(claim, "small")
        runs = counted(small.runs, "run") if small.runs else "no runs"
        lines.append(
            f"| {claim.number} | {claim.statement} | {claim.source} | {verdict} | {runs}, about "
            f"{rough_duration(small.seconds)} | `{command_of(claim)}` |"
        )
    for form in closed_forms():
        lines.append(f"| | {form.statement} | {form.source} | {form.verdict} | no training | `{form.command}` |")
    lines += ["", describe_estimate(), "`--dry-run` measures instead."]
    for claim in claims:
        lines += ["", *_section(claim, by_claim.get(claim.name))]
    for form in closed_forms():
        lines += ["", *_table(form)]
    return "\n".join(lines) + "\n"


def _section(claim: Claim, log: ClaimLog | None) -> Iterator[str]:
    yield f"## {claim.number}. {claim.statement}"
    yield ""
    yield f"- **Paper** ({claim.source}): {claim.paper}."
    yield f"- **{'Answered' if claim.source.startswith('a reader') else 'Confirmed'} if** {claim.rule}."
    if log is None:
        yield f"- **Ours**: {NOT_RUN}. `{command_of(claim)}`"
        return
    findings, verdict = judged(claim, log)
    yield f"- **Ours**: **{verdict.value}** at {log['scale']} scale, {counted(len(log['seeds']), 'seed')}."
    yield f"- **Differs from the paper**: {log['differs']}."
    yield f"- `{log['command']}`, {describe_time(log)} on {log['device']}, {log['date'][:10]}."
    yield ""
    yield "| | ours, with 95 % interval | paper | claimed | verdict |"
    yield "| --- | --- | --- | --- | --- |"
    for finding in findings:
        row = finding_row(finding)
        yield f"| {row['question']} | {row['value']} | {row['paper']} | {row['expected']} | {row['verdict']} |"


def _table(form: ClosedForm) -> Iterator[str]:
    yield f"## {form.source}: {form.statement}"
    yield ""
    yield f"{form.verdict}. `{form.command}`"
    yield ""
    yield f"| model | paper, {form.unit} | ours | ratio | |"
    yield "| --- | --- | --- | --- | --- |"
    for row in form.rows:
        yield f"| {row.name} | {row.paper:,.0f} | {row.ours:,.1f} | {row.ratio:.3f} | {row.remark} |"
