"""How long people wait for a whole command: start, data, kernels, steps, score and report, beside `import torch`.

    python benchmarks/whole_command.py [TREE …] [--data pets=FOLDER] [--only flowers pets …] [--rounds 1] [--cores 2]
                                       [--timm] [--json FILE]

Each command runs in a process of its own, on the device that `fit` takes by itself; trees, which hold a vitkit/, take
turns. The very first run finds no compiled kernel (Triton's cache is empty), the later ones find those of earlier ones.
Printed are the seconds of the whole command, of its steps (validation included, as the run records them) and of `import
torch` in a process of its own, and what is left: the time that vitkit adds. A timeline in the JSON says when each line
of the output came. --cores N repeats the warm run on so many cores. --timm adds `timm_loop.py`, a plain loop with the
images in GPU memory, to the rows that have the same steps.

Synthetic photos stand for flowers: 1,020 of 500 x 400 px. pets needs --data pets=FOLDER.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import photos

HERE = Path(__file__).parents[1]
FLOWERS = 1_020
DIFFERENT = 120  # distinct synthetic photos; the rest are copies under other names, which the runs are told to ignore
COMMANDS = {
    "flowers": "fit {flowers} --model Ti/16 --epochs 30 --set duplicates=ignore",
    "pets": "fit {pets} --recipe pets_transfer --weights ti16 --image 224 --lr 0.01",
    "pets-decoded": "fit {pets} --recipe pets_transfer --weights ti16 --image 224 --lr 0.01 --set cache=no",
    "default": "fit {pets}",
    "B/16": "fit {flowers} --model B/16 --weights none --steps 400 --batch 128 --set duplicates=ignore",
}
SAME_STEPS_IN_TIMM = {"pets": "--image 224 --steps 500 --batch 512 --lr 0.01"}


@dataclass(frozen=True, kw_only=True)
class Waited:
    """Seconds of one command."""

    row: str
    tree: str
    run: str  # "first", "warm", "2 cores", …
    whole: float
    steps: float | None = None  # as the run recorded them
    waiting: float | None = None  # the share of those seconds that it waited for data
    score: str = ""
    timeline: list[tuple[float, str]] = field(default_factory=list)  # seconds, the beginning of a line of output

    def left(self, import_torch: float) -> float | None:
        return None if self.steps is None else self.whole - self.steps - import_torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path, default=[HERE], help="folders that hold a vitkit/")
    parser.add_argument("--data", nargs="*", default=[], metavar="NAME=PATH")
    parser.add_argument("--only", nargs="+", default=list(COMMANDS), choices=list(COMMANDS))
    parser.add_argument("--rounds", type=int, default=1, help="of the warm runs")
    parser.add_argument("--cores", type=int, help="also on so many cores")
    parser.add_argument("--set", nargs="*", default=[], help="settings for all runs")
    parser.add_argument("--timm", action="store_true")
    parser.add_argument("--profile", action="store_true", help="also a warm run of each row under cProfile")
    parser.add_argument("--minutes", type=float, default=9, help="after which no new command is started")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    began, rows = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        data = {"flowers": str(work / "flowers"), **dict(item.split("=", 1) for item in options.data)}
        photos.write(photos.synthetic(DIFFERENT), work / "flowers", FLOWERS)
        torch_seconds = [import_torch() for _ in range(3)]
        for row in options.only:
            if "{pets}" in COMMANDS[row] and "pets" not in data:
                print(f"{row}: left out, --data pets=FOLDER names its images")
                continue
            words = shlex.split(COMMANDS[row].format(**data)) + (["--set", *options.set] if options.set else [])
            for waited in waits(row, words, options, work, began):
                rows.append(waited)
                print_row(waited, statistics.median(torch_seconds))
                if options.json:
                    record = {"import_torch": torch_seconds, "rows": [asdict(one) for one in rows]}
                    options.json.write_text(json.dumps(record, indent=1))
    print(
        f"import torch: {statistics.median(torch_seconds):.1f} s ({', '.join(f'{one:.1f}' for one in torch_seconds)})"
    )


def waits(row: str, words: list[str], options: argparse.Namespace, work: Path, began: float) -> Any:
    """Yield what each run of a row took, the trees taking turns."""
    for _ in range(options.rounds + (row == options.only[0])):
        for tree in options.trees:
            if time.perf_counter() - began > 60 * options.minutes:
                return
            yield run(row, words, tree, "warm" if compiled(tree, work).exists() else "first", work)
    if options.profile:
        for tree in options.trees:
            profile = (options.json or Path("profile")).with_suffix(f".{row.replace('/', '')}.prof")
            yield run(row, words, tree, "profiled", work, python=("-m", "cProfile", "-o", str(profile)))
    if options.cores:
        for tree in options.trees:
            cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[: options.cores])
            yield run(row, words, tree, f"{options.cores} cores", work, before=("taskset", "-c", cores))
    if options.timm and row in SAME_STEPS_IN_TIMM:
        loop = [sys.executable, str(Path(__file__).with_name("timm_loop.py")), words[1]]
        for number in range(options.rounds):
            whole, lines = timed([*loop, *SAME_STEPS_IN_TIMM[row].split()], dict(os.environ))
            score = next((line for _, line in lines if line.startswith("score")), "")
            yield Waited(row=row, tree="timm loop", run=f"{number + 1}", whole=whole, score=score, timeline=lines)


def compiled(tree: Path, work: Path) -> Path:
    """Return where Triton keeps the compiled kernels of a tree."""
    return work / f"triton-{tree.name}"


def run(
    row: str,
    words: list[str],
    tree: Path,
    which: str,
    work: Path,
    *,
    before: tuple[str, ...] = (),
    python: tuple[str, ...] = (),
) -> Waited:
    out = work / f"run-{time.time_ns()}"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(tree), os.environ.get("PYTHONPATH", "")])),
        "TRITON_CACHE_DIR": str(compiled(tree, work)),
        "PYTHONUNBUFFERED": "1",
    }
    whole, lines = timed(
        [*before, sys.executable, *python, "-m", "vitkit", *words, "--out", str(out)], environment, cwd=work
    )
    speeds = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines() if '"speed"' in line]
    return Waited(
        row=row,
        tree=tree.name,
        run=which,
        whole=whole,
        steps=speeds[-1]["seconds"] if speeds else None,
        waiting=speeds[-1].get("data_wait") if speeds else None,
        score=next((line for _, line in lines if line.startswith("score")), ""),
        timeline=lines,
    )


def timed(
    command: list[str], environment: dict[str, str], cwd: Path | None = None
) -> tuple[float, list[tuple[float, str]]]:
    """Run a command; return its seconds, and when each line of its output came."""
    began, lines = time.perf_counter(), []
    with subprocess.Popen(
        command, env=environment, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append((round(time.perf_counter() - began, 2), line.rstrip()[:100]))
    if process.returncode:
        raise SystemExit(f"{shlex.join(command)} ended with {process.returncode}:\n" + "\n".join(l for _, l in lines))
    return time.perf_counter() - began, lines


def import_torch() -> float:
    return timed([sys.executable, "-c", "import torch"], dict(os.environ))[0]


def print_row(waited: Waited, torch_seconds: float) -> None:
    left = waited.left(torch_seconds)
    parts = [f"{waited.row:8} {waited.tree:10} {waited.run:9} {waited.whole:6.1f} s"]
    if waited.steps is not None and left is not None:
        parts.append(f"steps {waited.steps:5.1f}, waiting for data {waited.waiting:.0%}, left {left:5.1f}")
    print("; ".join([*parts, waited.score[:60]]), flush=True)


if __name__ == "__main__":
    main()
