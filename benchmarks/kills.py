"""Kill a run with SIGKILL at random moments, resume it, and compare the result with that of an undisturbed run.

    python benchmarks/kills.py [KILLS] [--background] [--seed 0] [--jobs N] [--json]

Each trial starts a small `fit`, kills it or one of its resumptions several times, and lets the last one finish. Half of
the moments are drawn from all of the run's time; the others are inside a part of it that is short: a checkpoint being
written, its checksums, the cleaning of old ones, a resumption's look at the checkpoints, the scoring, the report.
Checkpoints are written by a thread while the steps go on; with --background, every kill comes while that thread is at
work. The weights, the checkpoints and the training log have to be those of the undisturbed run, byte for byte, and the
folder has to hold the same files and no others.

torch is imported once and every command is a fork, so that a kill costs less than a second.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import select
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from PIL import Image

from vitkit.cli.main import main as vitkit_main

KILLS_PER_TRIAL = 4
ANYWHERE = "anywhere"
BACKGROUND = {  # the parts of the thread that writes a checkpoint, in their order
    "make folder": ("vitkit.train.checkpoint:_make_empty", 0.003),
    "write shards": ("vitkit.train.checkpoint:save_file", 0.03),
    "checksums": ("vitkit.train.checkpoint:checksum", 0.01),
    "write record": ("vitkit.train.checkpoint:write_record", 0.005),
    "rename": ("vitkit.train.checkpoint:_sync", 0.003),
    "clean": ("vitkit.train.checkpoint:_remove", 0.003),
}
PARTS = {  # what a kill should hit: the function that does it, and the seconds within which the kill comes
    **BACKGROUND,
    "copy state": ("vitkit.train.checkpoint_staging:Staging.copy", 0.005),
    "wait for write": ("vitkit.train.checkpoint_writer:CheckpointWriter.wait", 0.01),
    "validate": ("vitkit.train.loop:TrainingLoop._validate", 0.05),
    "replace file": ("vitkit.atomic:remove_abandoned_once", 0.005),
    "save model": ("vitkit.weights.save:save_file", 0.01),
    "score": ("vitkit.run_score:evaluate", 0.1),
    "report": ("vitkit.run_score:write_report", 0.2),
    "card": ("vitkit.run_score:write_card", 0.02),
    "find checkpoint": ("vitkit.train.trainer:intact_checkpoint", 0.01),
    "load checkpoint": ("vitkit.train.checkpoint:load", 0.05),
    "remove leftovers": ("vitkit.run_folder:RunFolder._remove_leftovers", 0.003),
}
FIT = (
    *("fit", "--weights", "none", "--model", "mu/4", "--image", "16", "--steps", "24", "--batch", "12"),
    *("--workers", "1", "--device", "cpu"),
    *("--set", "save_every=2", "score_every=3", "dev=0.2", "patience=20", "average=0.9"),
)
ONCE = ("save model", "score", "report", "card", "find checkpoint", "load checkpoint", "remove leftovers")
RESUMED = ("find checkpoint", "load checkpoint")  # only a resumed run does these
IMAGES = "images"
IGNORED = ("seconds", "images_per_second", "data_wait", "checkpoint_wait")  # of the training log: they are times


@dataclass
class Trial:
    number: int
    kills: list[str]  # the part of each
    commands: int
    problems: list[str]


def run_command(arguments: Iterable[str], log: Path, kill_at: tuple[str, int, float] | None) -> tuple[int, bool]:
    """Run a verb in a fork and return its wait status, and whether it was killed here.

    `kill_at` is a part, at which of its calls, and the seconds after that.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        os.close(reading)
        _in_child([*arguments], log, kill_at, writing)
    os.close(writing)
    killed = False
    if kill_at is not None:
        part, _, seconds = kill_at
        began = part == ANYWHERE or bool(select.select([reading], [], [], 120)[0] and os.read(reading, 1))
        if began:
            time.sleep(seconds)
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                os.close(reading)
                return status, False
            os.kill(child, signal.SIGKILL)
            killed = True
    _, status = os.waitpid(child, 0)
    os.close(reading)  # not before: a part that begins late would fail to say so
    return status, killed and os.WIFSIGNALED(status)


def _in_child(arguments: list[str], log: Path, kill_at: tuple[str, int, float] | None, writing: int) -> None:
    output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    code = 1
    try:
        torch.set_num_threads(1)
        if kill_at is not None and kill_at[0] in PARTS:
            _announce(PARTS[kill_at[0]][0], kill_at[1], writing)
        vitkit_main(arguments)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _announce(target: str, call: int, writing: int) -> None:
    """Wrap a function so that it writes to the pipe when it is called for that time."""
    module, _, path = target.partition(":")
    *parents, name = path.split(".")
    holder: Any = functools.reduce(getattr, parents, importlib.import_module(module))
    function: Callable[..., Any] = getattr(holder, name)
    calls = 0

    @functools.wraps(function)
    def announced(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.write(writing, b".")
        return function(*arguments, **options)

    setattr(holder, name, announced)


def run_trial(
    number: int, kills: int, seed: int, folder: Path, whole: float, expected: dict[str, str], background: bool
) -> Trial:
    """Kill a run so many times, let it finish, and compare it."""
    draws = random.Random(f"{seed} {number}")
    run, log = folder / f"trial-{number}", folder / f"trial-{number}.log"
    trial = Trial(number, [], 0, [])
    status, resumed = -1, False
    while len(trial.kills) < kills and status != 0:
        parts = list(BACKGROUND) if background else [part for part in PARTS if resumed or part not in RESUMED]
        part = draws.choice(parts if background else [ANYWHERE] * len(parts) + parts)
        limit = whole if part == ANYWHERE else PARTS[part][1]
        kill_at = part, 1 if part in ONCE else draws.randint(1, 4), draws.uniform(0, limit)
        status, killed = run_command(_command(run), log, kill_at)
        trial.commands += 1
        if killed:
            trial.kills.append(part + (", resumed" if resumed else ""))
        elif status != 0:
            trial.problems.append(f"a command ended with {os.waitstatus_to_exitcode(status)}")
            return trial
        resumed = (run / "config.toml").is_file()
    while status != 0:
        status, _ = run_command(_command(run), log, None)
        trial.commands += 1
        if status != 0:
            trial.problems.append(f"the last command ended with {os.waitstatus_to_exitcode(status)}")
            return trial
    found = contents(run)
    for name in sorted(expected.keys() | found.keys()):
        if name not in expected:
            trial.problems.append(f"{name} is a stray file")
        elif found.get(name) != expected[name]:
            trial.problems.append(f"{name} is missing" if name not in found else f"{name} differs")
    return trial


def _command(run: Path) -> tuple[str, ...]:
    return ("resume", str(run)) if (run / "config.toml").is_file() else _fit(run)


def _fit(run: Path) -> tuple[str, ...]:
    return FIT[0], str(run.parent / IMAGES), *FIT[1:], "--out", str(run)


def contents(run: Path) -> dict[str, str]:
    """Return a hash of every file of a run that has to be equal, and "" for those that hold times or paths."""
    files = {}
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if path.is_dir():
            continue
        if path.suffix == ".safetensors":
            tensors = safetensors.numpy.load_file(path)  # the order of a checkpoint's header is random
            files[name] = hashlib.sha256(
                b"".join(name.encode() + value.tobytes() for name, value in sorted(tensors.items()))
            ).hexdigest()
        elif path.name == "metrics.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            kept = [{key: value for key, value in line.items() if key not in IGNORED} for line in lines]
            files[name] = hashlib.sha256(json.dumps(kept).encode()).hexdigest()
        else:
            files[name] = ""
    return files


def write_images(folder: Path) -> None:
    """Write 90 small images of three classes."""
    noise = np.random.default_rng(0)
    for level, name in enumerate(("ant", "bee", "cow")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(30):
            pixels = noise.integers(0, 100, (20, 20, 3), np.uint8) + np.uint8(60 * level)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("kills", nargs="?", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--background", action="store_true", help="kill only while a checkpoint is being written")
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time; each has two processes")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", type=Path, help="a folder for the runs and their logs")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kills-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        trials = kill(options.kills, options.seed, options.jobs, folder, options.background)
    parts = Counter(part for trial in trials for part in trial.kills)
    problems = [f"trial {trial.number}: {problem}" for trial in trials for problem in trial.problems]
    if options.json:
        print(json.dumps({"kills": parts.total(), "parts": parts, "trials": [asdict(trial) for trial in trials]}))
    else:
        for part, count in sorted(parts.items()):
            print(f"{count:5}  {part}")
        print(f"{parts.total():5}  kills in {len(trials)} runs, {time.monotonic() - began:.0f} s")
        print("\n".join(problems) or "       every run has the same bytes as the undisturbed one, and no other files")
    sys.exit(1 if problems else 0)


def kill(kills: int, seed: int, jobs: int, folder: Path, background: bool) -> list[Trial]:
    """Run trials, `jobs` at a time, until there were so many kills."""
    write_images(folder / IMAGES)
    undisturbed, log = folder / "undisturbed", folder / "undisturbed.log"
    whole = 0.0
    for path in (folder / "first", undisturbed):  # the first one fills the caches
        began = time.monotonic()
        status, _ = run_command(_fit(path), log, None)
        whole = time.monotonic() - began
        if status != 0:
            sys.exit(f"the undisturbed run has failed:\n{log.read_text()}")
    expected = contents(undisturbed)
    if contents(folder / "first") != expected:
        sys.exit("two undisturbed runs differ")
    trials: list[Trial] = []
    done, number = 0, 0
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        while done < kills:
            each = [min(KILLS_PER_TRIAL, kills - done - start) for start in range(0, kills - done, KILLS_PER_TRIAL)]
            futures = [
                pool.submit(run_trial, number + index, count, seed, folder, whole, expected, background)
                for index, count in enumerate(each)
            ]
            number += len(futures)
            for future in concurrent.futures.as_completed(futures):
                trial = future.result()
                trials.append(trial)
                done += len(trial.kills)
                print(f"{done} kills, {len(trial.problems)} problems", file=sys.stderr, flush=True)
    return sorted(trials, key=lambda trial: trial.number)


if __name__ == "__main__":
    main()
