"""The main job from end to end: settings → a run folder with a trained model, its score and its report."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import vitkit
from vitkit.atomic import write_text
from vitkit.config import toml
from vitkit.config.resolve import resolve
from vitkit.config.schema import Fit
from vitkit.data.loader import TooManyBroken
from vitkit.data.partition import Partition, fingerprint, partition
from vitkit.data.sources.base import Data
from vitkit.data.sources.open import open_data
from vitkit.data.sources.splits import fitting_split
from vitkit.devices import describe_machine, pick_device, pick_readers
from vitkit.errors import Interrupted, VitkitError
from vitkit.evaluate.classify import evaluate
from vitkit.evaluate.evaluation import Evaluation
from vitkit.inspect.looks import looks
from vitkit.progress import show_progress
from vitkit.report.card import write_card
from vitkit.report.page import write_report
from vitkit.run_folder import CARD, CONFIG, EVALUATION, MODEL, REPORT, RunError, RunFolder
from vitkit.text import counted, duration
from vitkit.train.distributed import Processes, joined, lost_peer
from vitkit.train.lr_search import choose_rate
from vitkit.train.tracking import check_installed
from vitkit.train.trainer import Say, train
from vitkit.weights.load import load

FEW = 100_000  # pictures below which training from nothing is worth a warning


def fit(data: str | os.PathLike[str], **chosen: Any) -> Path:
    """A run as `vitkit fit` makes it, from Python: its folder, for `vitkit.Classifier` and `vitkit.load`.

    What is `chosen` are settings by the names that config.toml has them under, tables as dictionaries: weights="none",
    epochs=5, out="runs/photos", augment={"mixup": 0.2}.
    """
    over = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in chosen.items()}
    said = ", ".join([repr(os.fspath(data)), *(f"{name}={value!r}" for name, value in over.items())])
    return start({**over, "data": os.fspath(data)}, over, sys.stdout, f"vitkit.fit({said})")


def start(over: Mapping[str, Any], said: Mapping[str, Any], talk: TextIO, command: str) -> Path:
    """A new run with what the user `said` and, maybe, has in a file; mistakes are told before anything is made."""
    toml.check(over)

    def resolved() -> tuple[Fit, Data, str]:
        config, data, reason = resolve(over, said)
        check_installed(config.track)
        return config, data, reason

    return _begin(resolved, over.get("device") or "auto", talk, command)


def begin(config: Fit, data: Data, reason: str, talk: TextIO, command: str) -> Path:
    """The same with every setting at hand; what is decided and found is said on `talk`."""
    return _begin(lambda: (config, data, reason), config.device, talk, command)


def _begin(resolved: Callable[[], tuple[Fit, Data, str]], device: str, talk: TextIO, command: str) -> Path:
    """A new run folder, and everything that belongs into it."""
    with contextlib.ExitStack() as held:
        with joined(pick_device(device)) as processes:
            say = _teller(processes, talk)
            config, data, reason = processes.agreed(resolved)  # data may be missing on one machine of several
            place = Path(processes.broadcast(config.out or free_name(_name(config))))
            config = replace(config, out=str(place))
            folder = processes.alone(lambda: RunFolder.create(place)) or RunFolder(place)
            held.callback(folder.close)
            try:
                processes.alone(lambda: _begin_record(config, data, folder, reason, command))
                splits = _carry_out(config, data, folder, processes, say, reason)
            except BaseException as error:
                if processes.first:
                    folder.discard()
                if isinstance(error, TooManyBroken):
                    error.add(or_=_without_them(error.share, place))
                raise
        if processes.first:
            _finish(config, data, splits, folder, say)
    return folder.path


def _begin_record(config: Fit, data: Data, folder: RunFolder, reason: str, command: str) -> None:
    folder.write_config(config)
    folder.add_to_record(
        command=command,
        started=_now(),
        recipe_reason=reason,
        data=_describe(data),
        asked=toml.to_tables(config),
        settings=toml.to_tables(config),
        versions=_versions(),
        machine=describe_machine(),
    )


def resume(path: Path, talk: TextIO, *, device: str | None = None, workers: int | None = None) -> Path:
    """A run that was stopped goes on from its last checkpoint, exactly as it would have."""
    config = RunFolder(path).config() if (path / "config.toml").is_file() else Fit()
    config = replace(
        config, device=device or config.device, workers=config.workers if workers is None else workers, out=str(path)
    )
    with contextlib.ExitStack() as held:
        with joined(pick_device(config.device)) as processes:
            say = _teller(processes, talk)
            folder = processes.alone(lambda: RunFolder.open(path)) or RunFolder(path)
            held.callback(folder.close)
            if "finished" in folder.record() and all((path / name).is_file() for name in (MODEL, REPORT, CARD)):
                raise RunError(
                    f"{path} is finished; there is nothing to resume.",
                    report=str(path / "report.html"),
                    more=f"vitkit fit DATA --weights {path}",
                )
            data = open_data(config.data, label=config.label)
            _check_data(data, folder)
            try:
                splits = _carry_out(config, data, folder, processes, say, folder.record().get("recipe_reason", ""))
            except TooManyBroken as error:
                error.add(or_=_without_them(error.share, path))
                raise
        if processes.first:
            _finish(config, data, splits, folder, say)
    return path


def _without_them(share: float, run: Path) -> str:
    """How a run does without that share of its pictures, or twice as many; where it had not begun, nothing is left."""
    allowed = min(max(0.2, math.ceil(20 * share) / 10), 1.0)
    if not (run / CONFIG).is_file():
        return f"--set max_failed={allowed:g} does without them"
    return f"max_failed = {allowed:g} in {run / CONFIG}, then vitkit resume {shlex.quote(str(run))}: does without them"


def _carry_out(config: Fit, data: Data, folder: RunFolder, processes: Processes, say: Say, reason: str) -> Partition:
    began = time.monotonic()
    decisions: list[tuple[str, str]] = []

    def note(name: str, text: str) -> None:
        decisions.append((name, text))
        say(name, text)

    def add_up() -> None:
        """A run that was stopped has cost what it has cost."""
        if processes.first:
            before = folder.record().get("seconds", 0.0)
            folder.add_to_record(decisions=decisions, seconds=round(before + time.monotonic() - began, 1))

    note("why", reason)
    for text in data.notes:
        note("note", text)
    _warn(config, data, note)
    try:
        if config.choose_lr:
            config = choose_rate(config, data, folder, processes, note)
        splits = train(config, data, folder, processes, note)
    except BaseException as error:
        with contextlib.suppress(VitkitError):  # on a disk that is full, what stopped the run is the news
            add_up()
        if processes.world_size > 1 and lost_peer(error):
            raise RunError(
                "another process of this run has ended, and this one cannot go on without it.",
                found="".join(str(error).splitlines()[:1]),
                then=f"vitkit resume {shlex.quote(str(folder.path))}, started in the same way",
            ) from error
        raise
    add_up()
    return splits


def _warn(config: Fit, data: Data, note: Say) -> None:
    pictures = len(data.splits[fitting_split(data)])
    if config.weights == "none" and config.objective == "labels" and pictures < FEW:
        note(
            "warning",
            f"{pictures:,} pictures are few to train from nothing. Ti/16 came to 11.8 % so on the 3,680 of "
            "Pets, and to 91.4 % from trained weights: --weights hf:… or PATH",
        )
    if config.objective == "labels" and (seen := _seen_before(config, data)):
        note("warning", seen)


def _seen_before(config: Fit, data: Data) -> str:
    """Weights of a run that learned from these data may know pictures that are to score the new one."""
    here, run = partition(data, **config.partition).held_out, RunFolder.of(config.weights)
    if here is None or run is None:
        return ""
    began = run.record()
    if began.get("settings", {}).get("data") != config.data or began.get("split") == here:
        return ""
    how = "" if began.get("objective") == "labels" else ", though without their labels"
    return f"{config.weights} has learned from these data{how}, from pictures to be scored too: the score may flatter"


def _finish(config: Fit, data: Data, splits: Partition, folder: RunFolder, say: Say) -> None:
    """The score, on pictures that training has not seen, and the report."""
    try:
        _score_and_report(config, data, splits, folder, say)
    except KeyboardInterrupt:
        raise Interrupted(
            f"trained, but not scored; vitkit resume {shlex.quote(str(folder.path))} finishes it", 130
        ) from None


def _score_and_report(config: Fit, data: Data, splits: Partition, folder: RunFolder, say: Say) -> None:
    began, device = time.monotonic(), pick_device(config.device)
    model = load(folder.path).to(device)
    if splits.test is not None:
        scored = replace(data, splits={splits.test_name: splits.test})
        # broken pictures are told in the report: hours of training are not lost over them
        evaluation = evaluate(
            model,
            scored,
            splits.test_name,
            device=device,
            max_failed=1.0,
            workers=pick_readers(config.workers, device, 1),
            progress=show_progress,
        )
        write_text(folder.path / EVALUATION, evaluation.to_json() + "\n", RunError)
        unseen = "" if _seen_before(config, data) else " that training has not seen"
        say("score", _score(evaluation) + unseen)
    folder.add_to_record(finished=_now())
    shown = splits.train if splits.test is None else splits.test
    report = write_report(folder.path, shown, looks(model, shown))
    write_card(folder.path)
    say(
        "took",
        f"{duration(folder.record()['seconds'])} to train, {duration(time.monotonic() - began)} to score and to report",
    )
    say("report", str(report))
    here = shlex.quote(str(folder.path))
    say("next", f"vitkit evaluate {here} DATA" if splits.test is not None else f"vitkit fit DATA --weights {here}")


def _score(evaluation: Evaluation) -> str:
    best = evaluation.headline
    name = "mean average precision" if evaluation.multilabel else "top-1"
    macro = f"; macro-F1 {evaluation.macro_f1.value:.1%}" if evaluation.macro_f1 else ""
    return (
        f"{best.value:.2%} {name} ({best.low:.1%} to {best.high:.1%}){macro} on "
        f"{counted(evaluation.pictures, 'picture')}"
    )


def _check_data(data: Data, folder: RunFolder) -> None:
    began = folder.record().get("data", {}).get("fingerprint")
    if began is not None and began != fingerprint(data, fitting_split(data)):
        raise RunError(
            f"{data.name} is not what {folder.path} was begun with: pictures or classes have changed.",
            try_="bring the data back as they were, or start a new run",
        )


def _teller(processes: Processes, talk: TextIO) -> Say:
    def say(name: str, text: str) -> None:
        if processes.first:
            print(f"{name:<9} {text}", file=talk, flush=True)

    return say


def _describe(data: Data) -> dict[str, Any]:
    return {
        "name": data.name,
        "kind": data.kind,
        "classes": len(data.classes),
        "notes": list(data.notes),
        "pictures": {name: len(split) for name, split in data.splits.items()},
        "fingerprint": fingerprint(data, fitting_split(data)),
        "counts": {
            name: dict(zip(data.classes, split.per_class(len(data.classes)).tolist(), strict=True))
            for name, split in data.splits.items()
            if data.classes
        },
    }


def _versions() -> dict[str, str]:
    packages = ("torch", "numpy", "pillow", "simplejpeg", "safetensors")
    return {
        "vitkit": vitkit.__version__,
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }


def _name(config: Fit) -> Path:
    model = config.model.replace("/", "-") or Path(config.weights).stem
    return Path(f"runs/{Path(config.data).stem or 'data'}-{model}")


def free_name(wanted: Path) -> Path:
    """The folder's name, or the first of name-2, name-3, … that is not taken."""
    number, name = 1, wanted
    while name.exists():
        number += 1
        name = wanted.with_name(f"{wanted.name}-{number}")
    return name


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
