"""Rows that survive an interruption: they are appended to FILE.part, continued by the next call, and end in FILE.

The header, the first line, records what the rows depend on, so that predictions of another model or for other images
are never mixed. Each line after it is a block: the rows of a batch, in columns.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from vitkit.atomic import lock
from vitkit.errors import ConfigError, VitkitError
from vitkit.regular_file import open_regular
from vitkit.stored_json import parse_json

# keys of the header and of rows, in journals of older versions
OLD_KEYS = {"pictures": "images", "computing": "engine", "picture": "image"}


MOST_LINE = 1 << 26  # bytes of a line
BATCH = "batch"  # the key of the batch size in the header
MOST_BATCH = 1 << 16  # images
OLD_BATCH = 64  # of journals whose header does not have it


class Trait(NamedTuple):
    """One thing that rows depend on."""

    value: str | int  # what is compared, such as a hash
    description: str  # for messages; two traits with the same description may still differ


class JournalBlock(Protocol):
    """The rows of some images, in their order."""

    @property
    def errors(self) -> Mapping[int, str]: ...  # row → why the image has no result

    def __len__(self) -> int: ...
    def select(self, first: int, stop: int) -> Self: ...
    def stored(self) -> Mapping[str, Any]: ...


BlockT = TypeVar("BlockT", bound=JournalBlock)


def journal_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


class Journal(Generic[BlockT]):
    def __init__(
        self,
        path: Path,
        traits: Mapping[str, Trait],
        *,
        batch: int,
        read: Callable[[Mapping[str, Any]], BlockT],
        restart: bool = False,
    ):
        """Open the journal of the file `path`; `done` of its rows are complete already, unless it restarts.

        `batch` becomes the batch size that the journal was begun with: rows of batches of another size could differ in
        their last bits. `read` returns a block as it was stored, or raises a VitkitError for one that a damaged disk
        has changed, which is then not complete.
        """
        self.path = journal_path(path)
        self.read, self.batch = read, batch
        self.done = 0
        with self._explain_os_errors():
            self.file = open_regular(self.path, "ab+")
        try:
            with self._explain_os_errors():
                self._lock()
                if restart:
                    self.file.truncate(0)
                self._continue(traits)
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        if not lock(self.file):
            raise ConfigError(f"another process is writing {self.path}.", try_="another --out, or wait for it to end")

    def _continue(self, traits: Mapping[str, Trait]) -> None:
        """Count the rows of complete blocks and cut off an incomplete last one, which a kill or a full disk leaves."""
        header = json.dumps({**traits, BATCH: Trait(self.batch, f"{self.batch}")}).encode() + b"\n"
        self.file.seek(0)
        old_header = self.file.readline(MOST_LINE)
        if header.startswith(old_header) and old_header != header:  # nothing, or an incomplete header
            self.file.truncate(0)
            self._append(header)
            return
        old = _read_header(old_header)
        if different := differences({name: old[name] for name in old if name != BATCH}, traits):
            raise ConfigError(
                f"{self.path} was begun with another model, other settings or other images.",
                found=different,
                try_="another --out, or --overwrite to begin again",
            )
        self.batch = int(old[BATCH].value)
        end = len(old_header)
        while (line := self.file.readline(MOST_LINE)) and (block := self._parse(line)) is not None:
            end += len(line)
            self.done += len(block)
        self.file.truncate(end)

    def write(self, block: BlockT) -> None:
        with self._explain_os_errors():
            self._append(json.dumps(block.stored()).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        self.file.write(line)
        self.file.flush()  # a kill then loses no row that was counted

    def blocks(self) -> Iterator[BlockT]:
        self.file.seek(0)
        self.file.readline(MOST_LINE)
        while line := self.file.readline(MOST_LINE):
            if (block := self._parse(line)) is None:
                raise ConfigError(f"{self.path} has changed while it was read.", try_="the same command again")
            yield block

    def _parse(self, line: bytes) -> BlockT | None:
        """Return a block, or None for a line that is none: a kill cuts one short, a power cut leaves zeros."""
        if not line.endswith(b"\n"):
            return None
        try:
            return self.read(_with_new_keys(parse_json(line, dict[str, Any], str(self.path))))
        except VitkitError:
            return None

    def close(self) -> None:
        with contextlib.suppress(OSError):  # of rows that a full disk did not take, which was reported then
            self.file.close()

    def discard(self) -> None:
        self.close()
        self.path.unlink()

    @contextlib.contextmanager
    def _explain_os_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be written: {error.strerror}.",
                try_="once it can be, the same command without --overwrite, which continues after the last row",
            ) from error


def _read_header(header: bytes) -> dict[str, Trait]:
    """Return the traits of a journal, with its batch size; nothing for a file that is no journal."""
    try:
        stored = parse_json(header, dict[str, tuple[str | int, str]], "the header")
    except VitkitError:
        return {}
    traits = {name: Trait(*trait) for name, trait in _with_new_keys(stored).items()}
    batch = traits.setdefault(BATCH, Trait(OLD_BATCH, f"{OLD_BATCH}")).value
    return traits if isinstance(batch, int) and 1 <= batch <= MOST_BATCH else {}


def differences(old: Mapping[str, Trait], traits: Mapping[str, Trait]) -> list[str]:
    """Describe the traits whose values differ: a model that was moved is still the same."""
    if old.keys() != traits.keys():
        return ["a file that vitkit has not written, or not this version of it"]
    return [
        f"{name}: {old[name].description}; now {trait.description}"
        if old[name].description != trait.description
        else f"{name}: {trait.description}, as now, but the content has changed"
        for name, trait in traits.items()
        if old[name].value != trait.value
    ]


def _with_new_keys(record: Mapping[str, Any]) -> dict[str, Any]:
    return {OLD_KEYS.get(key, key): value for key, value in record.items()}
