"""Measure how long each verb takes to start, beside `import torch`, for one or more source trees.

    python benchmarks/start.py [TREE …] [--rounds 5] [--only predict …] [--json]

Each command runs in a process of its own, on the CPU, with one thread and a small model, so that nearly all of its time
is that of imports; commands and trees take turns. Seconds are those of CPU time, user and system, which busy neighbours
change little; the medians over the rounds count. `fit` is measured until its first step has been shown, and `serve`
until it listens; the others to their end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

import vitkit

HERE = Path(__file__).parents[1]
TORCH = "import torch"


@dataclass(frozen=True)
class Command:
    words: tuple[str, ...]  # after `python`
    until: str = ""  # the start of the line of output at which it is stopped; "": it runs to its end


def commands() -> dict[str, Command]:
    def verb(words: str, until: str = "") -> Command:
        return Command(("-m", "vitkit", *words.split()), until)

    fit = "fit data --model mu/4 --image 28 --weights none --steps 2 --out fitted-{number} --device cpu --workers 0"
    return {
        TORCH: Command(("-c", TORCH)),
        "help": verb("--help"),
        "predict, one image": verb("predict ti16 data/test/red/0.png --device cpu"),
        "embed, one image": verb("embed ti16 data/test/red/0.png --device cpu --out vectors-{number}.npy"),
        "evaluate": verb("evaluate model data --device cpu --workers 0"),
        "fit until its first step": verb(fit, "step "),
        "fit of two steps": verb(fit.replace("fitted", "whole")),
        "inspect": verb("inspect model data/test/red/0.png --device cpu --out inspect-{number}"),
        "serve until it listens": verb("serve model --port 0 --device cpu --json", "{"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path, default=[HERE], help="folders that hold a vitkit/")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[], help="commands whose names begin with one of these")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    chosen = {
        name: command
        for name, command in commands().items()
        if name == TORCH or not options.only or name.startswith(tuple(options.only))
    }
    trees = [tree.resolve() for tree in options.trees]
    seconds: dict[Path, dict[str, list[float]]] = {tree: {name: [] for name in chosen} for tree in trees}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        for number in range(options.rounds + 1):  # the first fills the caches of files and bytecode
            for command_name, command in chosen.items():
                for index, tree in enumerate(trees):
                    spent = cpu_seconds(command, tree, folder, f"{index}-{number}")
                    seconds[tree][command_name] += [spent] if number else []
    medians = {
        str(tree): {name: statistics.median(values) for name, values in own.items()} for tree, own in seconds.items()
    }
    print(json.dumps(medians, indent=2) if options.json else as_text(medians))


def write_inputs(folder: Path) -> None:
    """Write a small labelled data set and a small model."""
    random = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 6)):
        for name, colour in (("red", (200, 30, 30)), ("blue", (30, 30, 200))):
            (folder / "data" / split / name).mkdir(parents=True)
            for index in range(count):
                pixels = np.uint8(np.array(colour) + random.integers(-25, 25, (30, 40, 3)))
                Image.fromarray(pixels).save(folder / "data" / split / name / f"{index}.png")
    model = vitkit.create("mu/4", classes=2, image=28)
    model.metadata = replace(model.metadata, labels=("blue", "red"))
    vitkit.save(model, folder / "model")


def cpu_seconds(command: Command, tree: Path, folder: Path, number: str) -> float:
    """Run the command of a tree and return the CPU seconds of its process and of children that it waited for."""
    fixed = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache")}
    words = [word.replace("{number}", number) for word in command.words]
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **fixed},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        output = []
        for line in process.stdout:
            output.append(line)
            if command.until and line.startswith(command.until):
                spent = _seconds_so_far(process.pid)
                process.terminate()
                return spent
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or command.until:
        raise SystemExit(f"{' '.join(words)} of {tree} failed:\n{''.join(output)}")
    return usage.ru_utime + usage.ru_stime


def _seconds_so_far(pid: int) -> float:
    """Return the CPU seconds of a running process, its threads included (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def as_text(medians: dict[str, dict[str, float]]) -> str:
    lines = []
    for tree, own in medians.items():
        lines.append(f"{tree}")
        lines += [
            f"  {name:<28} {spent:6.2f} s   {spent / own[TORCH]:.2f} x import torch" for name, spent in own.items()
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
