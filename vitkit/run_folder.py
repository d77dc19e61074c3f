"""A run folder: the model and the record of a run, written by one process at a time and atomically.

model.safetensors, model.json   the trained model            config.toml     every resolved setting
metrics.jsonl                   the training log              run.json        command, versions, data, decisions
evaluation.json, report.html, README.md                      checkpoints/    states to resume from
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any

from vitkit.atomic import lock, write_text
from vitkit.config import toml
from vitkit.config.schema import Fit
from vitkit.errors import ConfigError, VitkitError
from vitkit.messages import say
from vitkit.regular_file import open_regular
from vitkit.run_schema import MOST_LINE, RunJson, line_name, parse_metrics_line
from vitkit.storage.urls import is_url, refuse_run_folder
from vitkit.stored_json import read_json
from vitkit.temporary_names import remove, remove_abandoned
from vitkit.text import binary_size
from vitkit.weights.bundled import local_path
from vitkit.weights.remote import downloaded_run
from vitkit.weights.run_checkpoints import CHECKPOINTS, DELETING, SAVING, SEEN_BY_ALL, latest_checkpoint, step_of
from vitkit.weights.run_checkpoints import RECORD as CHECKPOINT_RECORD

LOCK = ".lock"
CONFIG, RECORD, METRICS, EVALUATION, MODEL = "config.toml", "run.json", "metrics.jsonl", "evaluation.json", "model.json"
REPORT, CARD = "report.html", "README.md"
# temporary files of earlier versions: the file's name and a random part
_OLD_TEMPORARY = re.compile(
    rf"\.({'|'.join(map(re.escape, (CONFIG, RECORD, METRICS, EVALUATION, MODEL, REPORT, CARD, CHECKPOINT_RECORD)))}"
    r"|model\.safetensors)\.[0-9a-f]{8}"
)


class RunError(VitkitError):
    """A run folder that cannot be used, or a run that cannot continue."""


class RunFolder:
    def __init__(self, path: Path):
        self.path = path
        self.created = False  # by this process
        self._lock: IO[str] | None = None
        self._metrics: IO[str] | None = None

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Create and lock a folder; one that holds a run is never overwritten."""
        refuse_run_folder(path)
        if (path / CONFIG).exists():
            if "finished" in cls(path).record():
                raise RunError(
                    f"{path} holds a finished run already; nothing was changed.",
                    try_="--out another folder, or remove this one",
                )
            raise RunError(
                f"{path} holds a run already; nothing was changed.",
                continue_=f"vitkit resume {path}, or the same command with --resume",
                or_="--out another folder, or remove this one",
            )
        if path.is_file():
            raise RunError(f"{path} is a file, not a folder.", try_="--out another name")
        folder = cls(path)
        folder.created = not path.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{path} cannot be made: {error.strerror}.", try_="--out a folder you can write") from error
        require_empty(path)
        folder.lock()
        return folder

    @classmethod
    def open(cls, path: Path, patience: float = 0.0) -> RunFolder:
        """Open and lock a folder that holds a run; wait for another process that has it as long as `patience` says."""
        refuse_run_folder(path)
        if not (path / CONFIG).is_file():
            entries = sorted(entry.name for entry in path.iterdir())[:8] if path.is_dir() else []
            raise RunError(
                f"{path} is not a run folder." if path.exists() else f"{path} does not exist.",
                looked_for=str(path / CONFIG),
                **({"found": ", ".join(entries)} if entries else {}),
            )
        folder = cls(path)
        folder.lock(patience)
        return folder

    @classmethod
    def from_weights(cls, weights: str) -> RunFolder | None:
        """Return the run folder that weights come from (a folder or its model.safetensors), None if of no run."""
        path = downloaded_run(weights) if is_url(weights) else local_path(weights)
        if path and path.name == "model.safetensors" and path.is_file():
            path = path.parent
        return cls(path) if path and (path / RECORD).is_file() else None

    def lock(self, patience: float = 0.0) -> None:
        """Lock the folder for this process; `patience` is in seconds."""
        try:
            self._lock = open_regular(self.path / LOCK, "a")
            locked = lock(self._lock)
            if not locked and patience:
                say("waiting", f"{self.path} is in use; up to {patience:.0f} s for its process to end", file=sys.stderr)
                locked = lock(self._lock, patience)
            if not locked:
                raise RunError(f"{self.path} is in use by another process.", try_="wait for it, or stop it")
            self._remove_leftovers()
        except OSError as error:
            raise RunError(
                f"{self.path} cannot be written: {error.strerror}.", try_="--out a folder you can write"
            ) from error

    def _remove_leftovers(self) -> None:
        """Remove what killed processes left half-written; with the lock held, no process of this run is writing."""
        for name, folders, files in os.walk(self.path):
            folder = Path(name)
            folders[:] = [inner for inner in folders if not _in_use(folder / inner)]
            remove_abandoned(folder)
            if folder.name == CHECKPOINTS:
                for half in {SAVING, DELETING}.intersection(folders):
                    remove(folder / half)
            for file in files:
                if file.startswith(SEEN_BY_ALL) or _OLD_TEMPORARY.fullmatch(file):
                    remove(folder / file)

    def close(self) -> None:
        for file in (self._metrics, self._lock):
            if file is not None:
                file.close()
        self._metrics = self._lock = None

    def discard(self) -> None:
        """Remove the files of a run that never completed a step, so that the next attempt can use the folder."""
        begun = self.begun
        self.close()
        if begun:
            return
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        for name in (CONFIG, RECORD, LOCK):
            (self.path / name).unlink(missing_ok=True)
        if self.created:
            shutil.rmtree(self.path, ignore_errors=True)

    @property
    def begun(self) -> bool:
        """Return whether a step was completed, in this run or in one of its trials."""
        latest = latest_checkpoint(self.path)  # that of step 0 holds the weights it began with
        return any(self.path.rglob(METRICS)) or (latest is not None and step_of(latest) > 0)

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
            content: dict[str, Any] = read_json(self.path / RECORD, RunJson, error=ConfigError, most=toml.MOST_RECORD)
            return content
        except FileNotFoundError:
            return {}

    def add_to_record(self, **entries: Any) -> None:
        text = json.dumps({**self.record(), **entries}, indent=2)  # ASCII: file names need not be text
        write_text(self.path / RECORD, text + "\n", RunError)

    def log(self, kind: str, step: int, **values: Any) -> None:
        """Append a line to metrics.jsonl; the next checkpoint syncs it to disk."""
        try:
            if self._metrics is None:
                self._metrics = open_regular(self.path / METRICS, "a", encoding="utf-8")
            self._metrics.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
            self._metrics.flush()
        except OSError as error:
            raise RunError(f"{self.path / METRICS} cannot be written: {error.strerror}.") from error

    def sync_metrics(self) -> None:
        try:
            if self._metrics is not None:
                os.fsync(self._metrics.fileno())
        except OSError as error:
            raise RunError(f"{self.path / METRICS} cannot be written: {error.strerror}.") from error

    def metrics(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of metrics.jsonl; a last line that a kill cut short is left out, another one is an error."""
        path, cut = self.path / METRICS, False
        try:
            file = open_regular(path, "r", encoding="utf-8", errors="replace", newline="\n")
        except FileNotFoundError:
            return
        with file:
            for number in itertools.count(1):
                line = file.readline(MOST_LINE)
                if not line:
                    return
                cut = not line.endswith("\n")
                try:
                    yield parse_metrics_line(line, line_name(path, number), RunError)
                except RunError as error:
                    if cut and len(line) < MOST_LINE:
                        return
                    error.add(try_="remove that line; the model does not depend on it")
                    raise

    def truncate_metrics(self, step: int, skipped: Collection[int] = ()) -> None:
        """Drop the metrics after the checkpoint of this step: training computes and logs those steps again.

        Rolled-back steps that the checkpoint lists as `skipped` keep their lines.
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


def _in_use(folder: Path) -> bool:
    """Return whether a folder is a run that another process is at."""
    if not (folder / LOCK).is_file():
        return False
    with open_regular(folder / LOCK, "a") as file:
        return not lock(file, patience=0)


def require_empty(path: Path) -> None:
    """Raise an error for a folder that holds other files."""
    entries = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    if entries:
        raise RunError(
            f"{path} is not empty; a run needs a folder of its own.",
            found=", ".join(entries[:8]),
            try_=f"--out {path / 'run'}, or leave --out out",
        )
