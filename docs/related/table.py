"""Make the table of docs/related.md from examples/related.toml and, once it has run, from the comparison's own output.

python docs/related/table.py            prints it
python docs/related/table.py --write    writes it into docs/related.md

vitkit grid examples/related.toml --out runs/related --json > docs/related/results.json makes the scores.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from vitkit.config.model_options import configure_model
from vitkit.cost import cost
from vitkit.grid.grid_file import read_grid

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results.json"
BEGIN, END = "<!-- table -->\n", "<!-- /table -->"


def table(results: Path = RESULTS) -> str:
    """Return the table in Markdown: sizes in closed form, scores from the comparison, if there is one."""
    ran = json.loads(results.read_text(encoding="utf-8"))["arms"] if results.exists() else []
    lines = [
        "| arm | model | parameters | MMACs | top-1 on CIFAR-10, % | difference to ViT, 95 % |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for arm in read_grid(ROOT / "examples/related.toml").arms:
        settings = dict(arm.settings)
        scored = next((one for one in ran if one["name"] == arm.name and same(one["settings"], settings)), None)
        model = settings.pop("model")
        size = cost(configure_model(model, settings, classes=10))
        columns = (arm.name, f"`{model}`", f"{size.parameters / 1e6:.1f}M", f"{size.macs / 1e6:.0f}")
        lines.append(f"| {' | '.join((*columns, *result(scored)))} |")
    return "\n".join(lines) + "\n"


def same(ran: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Return whether an arm ran with these settings; the data may have been CIFAR-10 in another file."""
    return {**ran, "data": None} == {**settings, "data": None}


def result(arm: dict[str, Any] | None) -> tuple[str, str]:
    """Return the score of an arm over its seeds, and its difference from the baseline, as text."""
    if arm is None:
        return "not run yet", "not run yet"
    scores = [score for score in arm["scores"].values() if score is not None]
    score = f"{sum(scores) / len(scores):.2f} ({', '.join(f'{one:.2f}' for one in scores)})" if scores else "diverged"
    if (difference := arm["difference"]) is None:
        return score, "–"
    if None in (difference["low"], difference["high"]):
        return score, "unknown: one seed"
    return score, f"{difference['mean']:+.2f} ({difference['low']:+.2f} to {difference['high']:+.2f}), {arm['verdict']}"


def main() -> None:
    if "--write" in sys.argv:
        page = ROOT / "docs/related.md"
        before, rest = page.read_text(encoding="utf-8").split(BEGIN)
        page.write_text(before + BEGIN + table() + END + rest.split(END)[1], encoding="utf-8")
    else:
        print(table(), end="")


if __name__ == "__main__":
    main()
