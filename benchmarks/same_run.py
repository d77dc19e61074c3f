"""Show that a refactoring changed no result: compare two source trees through their command lines.

    python benchmarks/same_run.py BEFORE_TREE AFTER_TREE [--work DIR]

Both trees make the same training runs on the CPU, whose tensors, settings and metrics must be equal. The tree AFTER
also continues what the tree BEFORE began: a finished run, a killed run and an incomplete prediction. Both must have the
same verbs and options. Each check prints one line; the exit code is 1 if any check fails. With --work, DIR/before and
DIR/after keep all that the two trees wrote.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from PIL import Image

RENAMED_OPTIONS = {("export", "--pictures"): "--images"}
RENAMED_KEYS = {"picture": "image", "pictures": "images"}  # of JSON objects and CSV columns

MODEL = ["--model", "mu/7", "--image", "28", "--batch", "32", "--seed", "1"]
DEVICE = ["--device", "cpu", "--workers", "0"]
FIT = shlex.split(
    "fit fashion --weights none --steps 60 --set channels=1 dev=0.1 score_every=20 save_every=20 average=0.99 "
    "dropout=0.1 stochastic_depth=0.1 label_smoothing=0.1 augment.mixup=0.2 augment.cutmix=0.3 augment.erase=0.1 "
    "augment.randaugment=[2,9]"
)
MASKED = shlex.split(
    "pretrain fashion --objective masked-patch --steps 20 --set channels=1 save_every=10 average=0.99 "
    "stochastic_depth=0.1"
)
BF16 = shlex.split(
    "fit fashion --weights masked --precision bf16 --steps 20 --set dev=0.1 score_every=10 save_every=10 micro=16 "
    "average=0.9 layer_decay=0.9 balance=0.5 augment.mixup=0.2"
)
RUNS = {"fit": FIT, "masked": MASKED, "bf16": BF16}  # in this order: bf16 starts from the weights of masked

KILL_AT_STEP = 30  # after the checkpoint of step 20, before that of step 40
IMAGES = 4000
KILL_AT_ROW = 1000
BROKEN_EVERY = 500  # one image in so many is a truncated file
CUT_BYTES = 20  # of the last row, as a kill in the middle of writing it would leave it
KILL_ATTEMPTS = 5
POLL_SECONDS = 0.01
COMMAND_SECONDS = 120
MAX_LISTED = 8  # differences printed of one check


class CommandError(Exception):
    """A command of one of the trees did not do what the check needs."""


@dataclass(frozen=True)
class Tree:
    """A source tree, and the folder in which its commands run and write."""

    source: Path
    folder: Path

    def vitkit(self, *words: str | Path) -> str:
        """Run a verb to its end and return what it printed."""
        return self._python("-m", "vitkit", *map(str, words))

    def start(self, *words: str | Path) -> subprocess.Popen[bytes]:
        """Start a verb and return its process."""
        command = [sys.executable, "-m", "vitkit", *map(str, words)]
        return subprocess.Popen(
            command, cwd=self.folder, env=self._environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def check_source(self) -> None:
        """Refuse a Python environment in which another vitkit hides the one of this tree."""
        imported = Path(self._python("-c", "import vitkit; print(vitkit.__file__)").strip()).resolve()
        if not imported.is_relative_to(self.source):
            raise SystemExit(f"{sys.executable} imports {imported}, not the vitkit of {self.source}.")

    def _python(self, *words: str) -> str:
        command = [sys.executable, *words]
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=self._environment(), capture_output=True, timeout=COMMAND_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"{shlex.join(words)} took over {COMMAND_SECONDS} s in {self.source}") from error
        if done.returncode:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-3:]
            raise CommandError("\n".join([f"{self.source}: exit code {done.returncode} of {shlex.join(words)}", *last]))
        return done.stdout.decode()

    def _environment(self) -> dict[str, str]:
        fixed = {"PYTHONPATH": str(self.source), "OMP_NUM_THREADS": "1", "COLUMNS": "1000", "NO_COLOR": "1"}
        return {**os.environ, **fixed, "PYTHONUTF8": "1"}


class Checks:
    """Print each check as it is made and remember whether any failed."""

    def __init__(self) -> None:
        self.made = self.failed = 0

    def add(self, text: str, differences: list[str]) -> None:
        """Print one check, which fails if there are any differences."""
        self.made += 1
        self.failed += bool(differences)
        print(f"{'DIFFERENT' if differences else 'same'}  {text}", flush=True)
        for line in differences[:MAX_LISTED]:
            print("           " + line.replace("\n", "\n           "), flush=True)
        if len(differences) > MAX_LISTED:
            print(f"           and {len(differences) - MAX_LISTED} more", flush=True)


def main() -> None:
    """Make all checks and exit with 1 if any of them fails."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("before", metavar="BEFORE_TREE", type=Path, help="source tree before the refactoring")
    parser.add_argument("after", metavar="AFTER_TREE", type=Path, help="source tree after it")
    parser.add_argument("--work", metavar="DIR", type=Path, help="an empty folder to work in, which is kept")
    options = parser.parse_args()
    for source in (options.before, options.after):
        if not (source / "vitkit" / "__init__.py").is_file():
            parser.error(f"{source} holds no package vitkit")
    if options.work and options.work.exists() and any(options.work.iterdir()):
        parser.error(f"--work {options.work} is not empty")
    work = (options.work or Path(tempfile.mkdtemp(prefix="same_run-"))).resolve()
    try:
        checks = compare_trees(options.before.resolve(), options.after.resolve(), work)
    except CommandError as error:
        raise SystemExit(str(error)) from error
    finally:
        if not options.work:
            shutil.rmtree(work, ignore_errors=True)
    print(f"{checks.made - checks.failed} of {checks.made} checks passed in {time.monotonic() - began:.0f} s")
    sys.exit(checks.failed > 0)


def compare_trees(before_source: Path, after_source: Path, work: Path) -> Checks:
    """Make all checks; a command that fails ends its group of checks and counts as one failure."""
    before, after = Tree(before_source, work / "before"), Tree(after_source, work / "after")
    for tree in (before, after):
        tree.folder.mkdir(parents=True)
        tree.check_source()
    write_images(work / "images")
    checks = Checks()
    groups = (check_command_lines, check_runs, check_finished_run, check_killed_run, check_incomplete_prediction)
    for group in groups:
        try:
            group(before, after, checks)
        except (CommandError, OSError, ValueError, KeyError) as error:
            checks.add(f"{group.__name__} could not be completed", [f"{type(error).__name__}: {error}"])
    return checks


def check_runs(before: Tree, after: Tree, checks: Checks) -> None:
    """Make every run with both trees and compare the run folders."""
    for name in RUNS:
        for tree in (before, after):
            tree.vitkit(*training_command(name, out=name))
        compare_runs(before.folder / name, after.folder / name, name, checks)


def training_command(name: str, out: str) -> list[str]:
    return [*RUNS[name], *MODEL, *DEVICE, "--out", out]


def compare_runs(before: Path, after: Path, name: str, checks: Checks) -> None:
    """Compare the tensors, the JSON files, the settings and the metrics of two run folders."""
    for path in files_of(before, after, "*.safetensors"):
        compare_tensors(before / path, after / path, f"{name}/{path}", checks)
    for path in files_of(before, after, "*.json"):
        if path.name != "run.json":  # the command, the time it took and the messages
            compare_values(read_json, before / path, after / path, f"{name}/{path}", checks)
    for read, path, aside in ((read_config, "config.toml", "paths"), (read_metrics, "metrics.jsonl", "speed")):
        compare_values(read, before / path, after / path, f"{name}/{path}, {aside} aside", checks)


def files_of(before: Path, after: Path, pattern: str) -> list[Path]:
    """Return the relative paths that either folder has; the comparison reports one that only one of them has."""
    return sorted({path.relative_to(folder) for folder in (before, after) for path in folder.rglob(pattern)})


def compare_tensors(before: Path, after: Path, name: str, checks: Checks) -> None:
    """Compare two safetensors files: all tensors byte for byte, and the metadata as JSON."""
    if missing := absent(before, after):
        checks.add(name, missing)
        return
    old, new = read_tensors(before), read_tensors(after)
    keys = sorted(key for key in old | new if old.get(key) != new.get(key))
    different = [f"{key}: {tensor_difference(old.get(key), new.get(key))}" for key in keys]
    checks.add(f"{name}: {len(old)} tensors byte for byte", different)
    metadata = differences(read_metadata(before), read_metadata(after))
    checks.add(f"{name}: metadata as JSON", list(metadata))


def read_tensors(path: Path) -> dict[str, dict[str, Any]]:
    """Return the dtype, the shape and the bytes of every tensor."""
    return {
        name: {**tensor, "data": bytes(tensor["data"])} for name, tensor in safetensors.deserialize(path.read_bytes())
    }


def tensor_difference(old: dict[str, Any] | None, new: dict[str, Any] | None) -> str:
    if old is None or new is None:
        return "only " + ("after" if old is None else "before")
    if (old["dtype"], old["shape"]) != (new["dtype"], new["shape"]):
        return f"{old['dtype']} {old['shape']} before, {new['dtype']} {new['shape']} after"
    if old["dtype"] != "F32":
        return "the bytes differ"
    pair = (np.frombuffer(old["data"], np.float32), np.frombuffer(new["data"], np.float32))
    return f"values differ by up to {np.abs(pair[0] - pair[1]).max():.3g}"


def read_metadata(path: Path) -> dict[str, Any]:
    with safetensors.safe_open(path, "np") as file:
        return {key: parsed(value) for key, value in (file.metadata() or {}).items()}


def parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_json(path: Path) -> Any:
    return renamed(json.loads(path.read_text(encoding="utf-8")))


def read_config(path: Path) -> Any:
    """Return the settings without the folders that the paths in them begin with."""
    settings = tomllib.loads(path.read_text(encoding="utf-8"))
    del settings["out"]
    return {**settings, "weights": Path(settings["weights"]).name}


def read_metrics(path: Path) -> list[Any]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [renamed(row) for row in rows if row["kind"] != "speed"]


def check_finished_run(before: Tree, after: Tree, checks: Checks) -> None:
    """Evaluate a finished run of BEFORE and predict with it, in both trees."""
    run, images = before.folder / "fit", before.folder.parent / "images"
    compare_evaluations(before, after, run, checks)
    chosen = sorted(images.iterdir())[:: IMAGES // 40 + 1]
    words = ["predict", run, *chosen, "--json", "--top", "10", *DEVICE]
    old, new = ([json.loads(line) for line in tree.vitkit(*words).splitlines()] for tree in (before, after))
    failed = sum(row["error"] is not None for row in old)
    checks.add(
        f"vitkit predict --json of a finished run: {len(old)} images, {failed} of them unreadable",
        list(differences(*([without_words(row) for row in rows] for rows in (old, new)))),
    )


def compare_evaluations(before: Tree, after: Tree, run: Path, checks: Checks) -> None:
    words = ["evaluate", run, "fashion", "--json", *DEVICE]
    old, new = (renamed(json.loads(tree.vitkit(*words))) for tree in (before, after))
    checks.add(f"vitkit evaluate --json {run.name}: {len(old)} entries", list(differences(old, new)))


def check_killed_run(before: Tree, after: Tree, checks: Checks) -> None:
    """Kill a run of BEFORE, evaluate its latest checkpoint in both trees, and finish it with AFTER."""
    killed, resumed = before.folder / "killed", after.folder / "resumed"
    command = training_command("fit", out="killed")
    make_killed(before, command, killed, lambda: steps_logged(killed) >= KILL_AT_STEP, killed / "model.json")
    step = steps_logged(killed)
    compare_evaluations(before, after, killed, checks)
    shutil.copytree(killed, resumed)
    after.vitkit("resume", resumed)
    compare_runs(before.folder / "fit", resumed, f"run killed at step {step}, resumed", checks)


def check_incomplete_prediction(before: Tree, after: Tree, checks: Checks) -> None:
    """Kill a prediction of BEFORE, finish it with AFTER, and compare the rows with those made without a stop."""
    run, images = before.folder / "fit", before.folder.parent / "images"
    part = before.folder / "killed.csv.part"
    command = ["predict", run, images, *DEVICE, "--out"]
    make_killed(before, [*command, "killed.csv"], part, lambda: rows_of(part) >= KILL_AT_ROW, part.with_suffix(""))
    continued = after.folder / "resumed.csv.part"
    continued.write_bytes(part.read_bytes()[:-CUT_BYTES])
    kept = rows_of(continued)
    printed = renamed(json.loads(after.vitkit(*command, "resumed.csv", "--json")))
    expected = {"there_already": kept, "images": IMAGES}
    checks.add(
        f"vitkit predict --out continues after {kept:,} of {IMAGES:,} rows and a part of the next",
        list(differences(expected, {key: printed.get(key) for key in expected})),
    )
    for tree in (before, after):
        tree.vitkit(*command, "whole.csv")
    resumed = read_rows(after.folder / "resumed.csv")
    for tree, name in ((after, "AFTER"), (before, "BEFORE")):
        whole = read_rows(tree.folder / "whole.csv")
        checks.add(f"{len(resumed):,} continued rows equal those of {name} alone", list(differences(whole, resumed)))


def make_killed(tree: Tree, command: list[str | Path], made: Path, ready: Callable[[], bool], finished: Path) -> None:
    """Start a command and send it SIGKILL once it is `ready`; try again if it finishes first."""
    for _ in range(KILL_ATTEMPTS):
        process = tree.start(*command)
        until = time.monotonic() + COMMAND_SECONDS
        try:
            while process.poll() is None and not ready() and time.monotonic() < until:
                time.sleep(POLL_SECONDS)
        finally:
            process.kill()
            process.wait()
        if made.exists() and ready() and not finished.exists():
            return
        for path in (made, finished):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    raise CommandError(f"{shlex.join(map(str, command))} could not be killed in the middle in {KILL_ATTEMPTS} attempts")


def steps_logged(run: Path) -> int:
    return lines_with(run / "metrics.jsonl", b'"kind": "step"')


def rows_of(part: Path) -> int:
    """Count the complete rows after the first line, the header; a line holds one row, or those of a batch."""
    if not part.is_file():
        return 0
    return sum(json.loads(line).get("images", 1) for line in part.read_bytes().split(b"\n")[1:-1])


def lines_with(path: Path, text: bytes) -> int:
    if not path.is_file():
        return 0
    return sum(text in line for line in path.read_bytes().split(b"\n")[:-1])


def read_rows(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="") as file:
        return [without_words(row) for row in csv.DictReader(file)]


def without_words(row: dict[str, Any]) -> dict[str, Any]:
    """Keep whether an image has an error, not the words of the error."""
    return renamed({**row, "error": bool(row["error"])})


def write_images(folder: Path) -> None:
    """Write small PNG files of several sizes and modes, some of them truncated."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(IMAGES):
        mode, size = (("L", (28, 28)), ("RGB", (36, 30)), ("L", (20, 44)), ("P", (28, 28)))[number % 4]
        coarse = Image.fromarray(random.integers(0, 256, (5, 5, 3), dtype=np.uint8))
        path = folder / f"{number:05d}.png"
        coarse.resize(size, Image.Resampling.BICUBIC).convert(mode).save(path, compress_level=1)
        if number % BROKEN_EVERY == 0:
            path.write_bytes(path.read_bytes()[:100])


def check_command_lines(before: Tree, after: Tree, checks: Checks) -> None:
    """Compare the verbs, and the options of each verb with their metavars and defaults."""
    old, new = verbs_of(before), verbs_of(after)
    checks.add(f"vitkit --help: {len(old)} verbs", list(differences(dict.fromkeys(old), dict.fromkeys(new))))
    for verb in (verb for verb in old if verb in new):
        ours, theirs = arguments_of(before, verb), arguments_of(after, verb)
        checks.add(f"vitkit {verb} --help: {len(ours)} arguments", list(differences(ours, theirs)))


def verbs_of(tree: Tree) -> list[str]:
    return re.findall(r"^  ([a-z][\w-]*) ", tree.vitkit("--help"), re.MULTILINE)


def arguments_of(tree: Tree, verb: str) -> dict[str, str]:
    """Return the metavar and the default of each option and positional argument that the help shows."""
    arguments: dict[str, str] = {}
    name = ""
    for line in re.findall(r"^│ (.*) │$", tree.vitkit(verb, "--help"), re.MULTILINE):
        heading, _, words = line.rstrip().partition("  ")  # two spaces: a metavar may hold single ones
        if heading:
            option, _, metavar = heading.partition(" ") if heading.startswith("--") else (heading, "", "")
            name = RENAMED_OPTIONS.get((verb, option), option)
            arguments[name] = metavar
        if default := re.search(r"\((default: .*|required)\)$", words):
            arguments[name] += f" ({default[1]})"
    if "-h, --help" not in arguments:
        raise CommandError(f"the help of vitkit {verb} could not be read")
    return arguments


def compare_values(read: Callable[[Path], Any], before: Path, after: Path, name: str, checks: Checks) -> None:
    """Compare what `read` makes of two files."""
    if missing := absent(before, after):
        checks.add(name, missing)
        return
    old, new = read(before), read(after)
    checks.add(f"{name}: {len(old)} {'rows' if isinstance(old, list) else 'entries'}", list(differences(old, new)))


def absent(before: Path, after: Path) -> list[str]:
    return [f"{path} does not exist" for path in (before, after) if not path.is_file()]


def renamed(value: Any) -> Any:
    """Give the keys of nested objects the names that they have after the refactoring."""
    if isinstance(value, dict):
        return {RENAMED_KEYS.get(key, key): renamed(inner) for key, inner in value.items()}
    return [renamed(inner) for inner in value] if isinstance(value, list) else value


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Yield where and how two JSON values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            path = f"{where}.{key}".lstrip(".")
            if key in old and key in new:
                yield from differences(old[key], new[key], path)
            else:
                yield f"{path}: only {'before' if key in old else 'after'}"
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{where or 'rows'}: {len(old)} items before, {len(new)} after"
        for index, pair in enumerate(zip(old, new, strict=False)):
            yield from differences(*pair, f"{where}[{index}]")
    elif type(old) is not type(new) or old != new:
        yield f"{where}: {old!r} before, {new!r} after"


if __name__ == "__main__":
    main()
