"""A run folder: the artefact and the record. One process at a time writes it; whatever it holds is whole.

model.safetensors, model.json   the trained model            config.toml     every resolved setting
metrics.jsonl                   what happened, line by line   run.json        command, versions, data, decisions
evaluation.json, report.html, README.md                      checkpoints/    states to resume from
"""

from __future__ import annotations

import json
import os
import shutil
import weakref
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any

from vitkit.atomic import locked, write_text
from vitkit.config import toml
from vitkit.config.schema import Fit
from vitkit.errors import ConfigError, VitkitError
from vitkit.text import binary_size
from vitkit.weights.run_checkpoints import CHECKPOINTS

LOCK = ".lock"
CONFIG, RECORD, METRICS, EVALUATION, MODEL = "config.toml", "run.json", "metrics.jsonl", "evaluation.json", "model.json"
REPORT, CARD = "report.html", "README.md"

_locked: weakref.WeakSet[RunFolder] = weakref.WeakSet()


class RunError(VitkitError):
    """A run folder that cannot be used, or a run that cannot go on."""


class RunFolder:
    def __init__(self, path: Path):
        self.path = path
        self.made = False  # by us, just now
        self._lock: IO[str] | None = None
        self._metrics: IO[str] | None = None

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """A new folder, locked; one with a run in it is not written over."""
        if (path / CONFIG).exists():
            if "finished" in cls(path).record():
                raise RunError(
                    f"{path} holds a finished run already; nothing was changed.",
                    try_="--out another folder, or remove this one",
                )
            raise RunError(
                f"{path} holds a run already; nothing was changed.",
                continue_=f"vitkit resume {path}",
                or_="--out another folder, or remove this one",
            )
        if path.is_file():
            raise RunError(f"{path} is a file, not a folder.", try_="--out another name")
        folder = cls(path)
        folder.made = not path.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{path} cannot be made: {error.strerror}.", try_="--out a folder you may write") from error
        refuse_strangers(path)
        folder.lock()
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A folder with a run in it, locked."""
        if not (path / CONFIG).is_file():
            found = sorted(entry.name for entry in path.iterdir())[:8] if path.is_dir() else []
            raise RunError(
                f"{path} is not a run folder." if path.exists() else f"{path} does not exist.",
                looked_for=str(path / CONFIG),
                **({"found": ", ".join(found)} if found else {}),
            )
        folder = cls(path)
        folder.lock()
        return folder

    @classmethod
    def of(cls, weights: str) -> RunFolder | None:
        """The folder that weights come from, named as it or by its model.safetensors; None for weights of no run."""
        path = Path(weights).expanduser()
        if path.name == "model.safetensors" and path.is_file():
            path = path.parent
        return cls(path) if (path / RECORD).is_file() else None

    def lock(self) -> None:
        try:
            self._lock = (self.path / LOCK).open("a")
            if not locked(self._lock):
                raise RunError(f"{self.path} is in use by another process.", try_="wait for it, or stop it")
            _locked.add(self)
        except OSError as error:
            raise RunError(
                f"{self.path} cannot be written: {error.strerror}.", try_="--out a folder you may write"
            ) from error

    def leave_lock(self) -> None:
        """To the process that this one was forked from: readers live on for seconds after a run was killed."""
        if self._lock is not None:
            self._lock.close()

    def close(self) -> None:
        for file in (self._metrics, self._lock):
            if file is not None:
                file.close()
        self._metrics = self._lock = None

    def discard(self) -> None:
        """A run that never began leaves no folder that would be in the way of the next attempt."""
        begun = any(self.path.rglob(METRICS))  # a step was finished, in this run or in one of its trials
        self.close()
        if begun:
            return
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        for name in (CONFIG, RECORD, LOCK):
            (self.path / name).unlink(missing_ok=True)
        if self.made:
            shutil.rmtree(self.path, ignore_errors=True)

    def check_space(self, needed: int) -> None:
        free = shutil.disk_usage(self.path).free
        if free < needed:
            raise RunError(
                f"{self.path} is on a disk with {binary_size(free)} free; this run needs {binary_size(needed)} for "
                "its checkpoints.",
                try_="--out a folder on another disk, or make room",
            )

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def finished(self) -> bool:
        return (self.path / MODEL).is_file()

    def config(self) -> Fit:
        return toml.from_tables(toml.read(self.path / CONFIG))

    def write_config(self, config: Fit) -> None:
        write_text(self.path / CONFIG, toml.write(config), RunError)

    def record(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads((self.path / RECORD).read_text(encoding="utf-8"))
            return content
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ConfigError(f"{self.path / RECORD} is damaged: {error}") from error

    def add_to_record(self, **entries: Any) -> None:
        text = json.dumps({**self.record(), **entries}, indent=2)  # ASCII: file names need not be text
        write_text(self.path / RECORD, text + "\n", RunError)

    def log(self, kind: str, step: int, **values: Any) -> None:
        """A line of metrics.jsonl; it reaches the disk with the next checkpoint at the latest."""
        try:
            if self._metrics is None:
                self._metrics = (self.path / METRICS).open("a", encoding="utf-8")
            self._metrics.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
            self._metrics.flush()
        except OSError as error:
            raise RunError(f"{self.path / METRICS} cannot be written: {error.strerror}.") from error

    def sync_metrics(self) -> None:
        if self._metrics is not None:
            os.fsync(self._metrics.fileno())

    def metrics(self) -> Iterator[dict[str, Any]]:
        """Line by line; a last line that a kill cut short is left out."""
        try:
            text = (self.path / METRICS).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return
        for line in text.removesuffix("\n").split("\n"):  # splitlines() would cut at what names may hold
            try:
                yield json.loads(line)
            except ValueError:
                return

    def forget_after(self, step: int, skipped: Collection[int] = ()) -> None:
        """Metrics as they were at a checkpoint; what came later will be computed, and written, again.

        Of the steps that were rolled back, those that the checkpoint knows it has `skipped` stay named.
        """
        kept = [
            line
            for line in self.metrics()
            if (line["step"] - 1 in skipped if line["kind"] == "rolled-back" else line["step"] <= step)
        ]
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        text = "".join(json.dumps(line) + "\n" for line in kept)
        write_text(self.path / METRICS, text, RunError)


def _leave_locks() -> None:
    for folder in _locked:
        folder.leave_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks)


def refuse_strangers(path: Path) -> None:
    """What is in a folder already is somebody's."""
    strangers = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    if strangers:
        raise RunError(
            f"{path} is not empty; a run needs a folder of its own.",
            found=", ".join(strangers[:8]),
            try_=f"--out {path / 'run'}, or leave --out away",
        )
