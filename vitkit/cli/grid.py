"""The verb `grid`: run a comparison of settings."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import Positional, arg

from vitkit.cli.options import Json, at_least, option, print_json
from vitkit.cli.training_options import log_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vitkit.grid.arm import Trial
    from vitkit.grid.comparison import ArmResult, Effect
    from vitkit.grid.outcome import Outcome


def grid(
    file: Annotated[Positional[Path], arg(metavar="FILE", help="the comparison in TOML: seeds, settings, axes, arms")],
    out: Annotated[
        Path | None, option("folder of all runs and the page; default: runs/ and the file's name", "DIR")
    ] = None,
    seeds: Annotated[int | None, option("number of seeds, instead of the file's", "N")] = None,
    dry_run: Annotated[
        bool,
        tyro.conf.FlagCreatePairsOff,
        arg(help="print arms, steps, images and the estimated time, and run nothing"),
    ] = False,
    jobs: Annotated[int | None, option("runs at a time, also several on a GPU; default: one for each GPU", "N")] = None,
    device: Annotated[str, arg(help="auto, cpu, cuda, cuda:1 …", metavar="NAME")] = "auto",
    json: Json = False,
) -> None:
    """Run a comparison of settings over seeds, and write its table and page.

    vitkit grid rates.toml --dry-run

    vitkit grid rates.toml --out runs/rates

    Every combination is an ordinary run. Stopped anywhere, the same command goes on; runs that exist are not repeated.
    """
    from dataclasses import replace

    from vitkit.grid.arm import trials_of
    from vitkit.grid.comparison import compare, effects
    from vitkit.grid.devices import advise_mps, pick_devices
    from vitkit.grid.grid_file import read_grid
    from vitkit.grid.page import write_page
    from vitkit.grid.runner import run_trials
    from vitkit.grid.trial_runner import TrialRunner
    from vitkit.messages import say
    from vitkit.text import duration

    at_least(1, seeds=seeds, jobs=jobs)
    comparison = read_grid(file)
    if seeds is not None:
        comparison = replace(comparison, seeds=tuple(range(seeds)))
    folder = out or Path("runs") / file.stem
    trials = trials_of(comparison.arms, comparison.seeds)
    devices = pick_devices(device, jobs)
    stream = log_stream(json)
    if dry_run:
        _print_estimate(trials, TrialRunner(folder, devices[0]), devices, json)
        return
    if advice := advise_mps(devices):
        say("note", advice, file=stream)
    folder.mkdir(parents=True, exist_ok=True)
    finished = 0

    def report(trial: Trial, outcome: Outcome, ran: bool) -> None:
        nonlocal finished
        finished += 1
        result = outcome.status if outcome.score is None else f"{outcome.score:.2f} %"
        took = f"{duration(outcome.seconds)}, {100 * outcome.overhead:.0f} % outside of steps" if ran else "already run"
        say("run", f"{finished}/{len(trials)}  {trial.arm.name}, seed {trial.seed}: {result} ({took})", file=stream)

    outcomes = run_trials(trials, folder, devices=devices, report=report)
    rows, main_effects = compare(comparison, outcomes), effects(comparison, outcomes)
    command = shlex.join(["vitkit", *sys.argv[1:]])
    page = write_page(folder, comparison, rows, main_effects, outcomes, command)
    if json:
        print_json("grid", {"page": str(page), **_as_json(rows, main_effects, outcomes)})
    else:
        _print_table(rows, main_effects)
        say("report", str(page))


def _print_estimate(trials: list[Trial], runner: Any, devices: Sequence[str], json: bool) -> None:
    from vitkit.grid.devices import parallel
    from vitkit.grid.estimate import estimate
    from vitkit.messages import print_line
    from vitkit.text import binary_size, duration

    rows = estimate(trials, runner)
    total = sum(row.seconds for row in rows) / parallel(devices)
    if json:
        content = [
            {
                "arm": row.trial.arm.name,
                "seed": row.trial.seed,
                "done": row.done,
                "steps": row.steps,
                "images": row.images,
                "seconds": row.seconds,
                "memory_bytes": row.memory,
            }
            for row in rows
        ]
        print_json("grid", {"runs": content, "seconds": total})
        return
    first = [row for row in rows if row.trial.seed == trials[0].seed]
    width = max(len(row.trial.arm.name) for row in first)
    for row in first:
        left = [one for one in rows if one.trial.arm == row.trial.arm and not one.done]
        cost = f"{duration(max(one.seconds for one in left))} a run" if left else "done"
        memory = f", {binary_size(row.memory)}" if row.memory else ""
        print_line(f"{row.trial.arm.name:<{width}}  {row.steps:,} steps, {row.images:,} images, {cost}{memory}")
    open_runs = sum(not row.done for row in rows)
    print_line("")
    print_line(f"{open_runs} of {len(rows)} runs are left, about {duration(total)} with {len(devices)} at a time")


def _print_table(rows: list[ArmResult], main_effects: list[Effect]) -> None:
    from rich.console import Console
    from rich.table import Table

    from vitkit.grid.page import signed
    from vitkit.text import printable

    table = Table(box=None, pad_edge=False)
    table.add_column("arm")
    for title in ("score, %", "difference", "", "diverged", "s a run"):
        table.add_column(title, justify="left" if not title else "right", no_wrap=True)
    for row in rows:
        score = f"{row.mean.mean:.2f}" if row.mean.count else "–"
        difference = "" if row.difference is None else signed(row.difference)
        table.add_row(
            printable(row.arm.name), score, difference, row.word, str(row.diverged or ""), f"{row.seconds:.1f}"
        )
    console = Console(highlight=False, markup=False)
    console.print(table)
    for effect in main_effects:
        console.print(printable(f"{effect.value} against {effect.against}: {signed(effect.difference)}, {effect.word}"))


def _as_json(rows: list[ArmResult], main_effects: list[Effect], outcomes: dict[Trial, Outcome]) -> dict[str, Any]:
    return {
        "arms": [
            {
                "name": row.arm.name,
                "settings": row.arm.settings,
                "scores": {str(seed): score for seed, score in row.scores.items()},
                "mean": row.mean.plain(),
                "difference": None if row.difference is None else row.difference.plain(),
                "verdict": row.word,
                "diverged": row.diverged,
                "seconds": row.seconds,
            }
            for row in rows
        ],
        "effects": [
            {"axis": one.axis, "value": one.value, "against": one.against, "difference": one.difference.plain()}
            for one in main_effects
        ],
        "runs": [
            {"arm": trial.arm.name, "seed": trial.seed, "run": str(outcome.run), "status": outcome.status}
            for trial, outcome in outcomes.items()
        ],
    }
