"""Rows that survive a stop: written as they come into FILE.part, taken up again by the next call, FILE once complete.

The first line says what the rows belong to, so that answers of another model or to other pictures are never mixed.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from vitkit.errors import ConfigError


class Trait(NamedTuple):
    """One thing that rows depend on."""

    value: str | int  # what is compared, such as a hash
    words: str  # what a message says of it; two of the same words may still differ


def part_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


class Journal:
    def __init__(self, path: Path, belongs_to: Mapping[str, Trait], *, anew: bool = False):
        """The journal of the file `path`; `done` rows of it are there already, unless it begins `anew`."""
        self.path = part_of(path)
        self.done = 0
        with self._told():
            self.file = self.path.open("ab+")  # one handle for all: closing another would give up the lock
        try:
            with self._told():
                self._lock()
                if anew:
                    self.file.truncate(0)
                self._take_up(belongs_to)
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        if not _locked(self.file):
            raise ConfigError(f"another process is writing {self.path}.", try_="another --out, or wait for it to end")

    def _take_up(self, belongs_to: Mapping[str, Trait]) -> None:
        """Counts the whole rows and cuts off what a kill or a full disk has left of the last one."""
        head = json.dumps(dict(belongs_to)).encode() + b"\n"
        self.file.seek(0)
        found = self.file.readline()
        if head.startswith(found) and found != head:  # nothing, or not even all of the first line
            self.file.truncate(0)
            self._append(head)
            return
        if different := _differences(found, belongs_to):
            raise ConfigError(
                f"{self.path} was begun with another model, other settings or other pictures.",
                found=different,
                try_="another --out, or --overwrite to begin again",
            )
        whole = len(found)
        for line in self.file:
            if not _is_row(line):
                break
            whole += len(line)
            self.done += 1
        self.file.truncate(whole)

    def write(self, row: Mapping[str, Any]) -> None:
        with self._told():
            self._append(json.dumps(row).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        self.file.write(line)
        self.file.flush()  # a kill then loses no row that was counted

    def rows(self) -> Iterator[dict[str, Any]]:
        self.file.seek(0)
        self.file.readline()
        for line in self.file:
            yield json.loads(line)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # of what a full disk did not take, and was told of then
            self.file.close()

    def discard(self) -> None:
        self.close()
        self.path.unlink()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be written: {error.strerror}.",
                try_="the same command, without --overwrite, once it can be: it goes on behind the last row",
            ) from error


def _locked(file: BinaryIO) -> bool:
    """Whether this process alone has the file now. Ends with the process, and children do not have it too.

    Windows has no such lock, nor have some network disks: there, it is the user who has to take care.
    """
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True
    return True


def _is_row(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except ValueError:  # a power cut leaves zeros
        return False


def _differences(found: bytes, now: Mapping[str, Trait]) -> list[str]:
    """By value, told in words: a model that lies elsewhere now is still the same."""
    try:
        before = {name: Trait(*trait) for name, trait in json.loads(found).items()}
    except (ValueError, TypeError, AttributeError):
        before = {}
    if before.keys() != now.keys():
        return ["a file that vitkit has not written, or not this version of it"]
    return [
        f"{name}: {before[name].words}; now {trait.words}"
        if before[name].words != trait.words
        else f"{name}: {trait.words}, as now, but what is called so has changed"
        for name, trait in now.items()
        if before[name].value != trait.value
    ]
