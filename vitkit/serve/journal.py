"""Rows that survive a stop: written as they come into FILE.part, taken up again by the next call, FILE once complete.

The first line says what the rows belong to, so that answers of another model or to other pictures are never mixed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitkit.errors import ConfigError


class Journal:
    def __init__(self, path: Path, belongs_to: Mapping[str, Any]):
        """The journal of the file `path`; `done` rows of it are there already."""
        self.path = path.with_name(f"{path.name}.part")
        self.done = 0
        head = json.dumps(dict(belongs_to)) + "\n"
        try:
            if self.path.exists():
                self._take_up(head)
            else:
                self.path.write_text(head, encoding="utf-8")
            self.file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error.strerror}.") from error

    def _take_up(self, head: str) -> None:
        """Counts the whole rows and cuts off what a kill has left of the last one."""
        with self.path.open("rb+") as file:
            found = file.readline().decode("utf-8", "replace")
            if found != head:
                raise ConfigError(f"{self.path} was begun with another model, other settings or other pictures.",
                                  found=_differences(found, head), try_="another --out, or --overwrite to begin again")
            whole = file.tell()
            for line in file:
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                self.done += 1
            file.truncate(whole)

    def write(self, row: Mapping[str, Any]) -> None:
        self.file.write(json.dumps(row) + "\n")

    def rows(self) -> Iterator[dict[str, Any]]:
        with self.path.open(encoding="utf-8") as file:
            file.readline()
            for line in file:
                yield json.loads(line)

    def close(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()

    def discard(self) -> None:
        self.path.unlink()


def _differences(found: str, wanted: str) -> str:
    try:
        before, now = json.loads(found), json.loads(wanted)
        return "; ".join(f"{key}: {before.get(key)!r}, now {now[key]!r}" for key in now if before.get(key) != now[key])
    except (ValueError, AttributeError):
        return "a file that vitkit has not written"
