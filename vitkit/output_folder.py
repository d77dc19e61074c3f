"""A folder of outputs that many processes write: files that appear whole, and are never changed.

The few methods are those that an object store has as well: no rename, no append. What is there is done; who is killed
leaves nothing behind, and writes the same bytes again.
"""

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from vitkit.atomic import lock, replacing
from vitkit.errors import ConfigError
from vitkit.regular_file import open_regular
from vitkit.storage.remote_folder import RemoteFolder
from vitkit.storage.urls import is_url


class OutputFolder(Protocol):
    """A folder whose files are named without folders of their own; errors are ConfigErrors with its name."""

    @property
    def where(self) -> str: ...  # its name for messages

    def names(self, prefix: str = "") -> list[str]:
        """Return the sorted names of the complete files that begin with `prefix`; none where there is no folder."""
        ...

    def exists(self, name: str) -> bool: ...

    def read(self, name: str) -> bytes:
        """Return the content of a file, or raise a ConfigError."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole, in place of the one that there may be."""
        ...

    def create(self, name: str, content: bytes) -> bytes:
        """Write a file whole unless it is there; return what is there then.

        Of several processes at once, all get the content of one. Where a store cannot promise that, it does its best.
        """
        ...

    def delete(self, name: str) -> None:
        """Remove a file; one that is not there is removed already."""
        ...

    def lock(self, name: str) -> AbstractContextManager[bool]:
        """Hold the lock of that name until the end; False where another process holds it.

        A store without locks, whose processes do not see each other, returns True.
        """
        ...


class LocalFolder:
    """An output folder on a file system; it is made with the first file."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def where(self) -> str:
        return str(self.path)

    def names(self, prefix: str = "") -> list[str]:
        try:
            with os.scandir(self.path) as entries:
                # temporary files and locks begin with a dot
                return sorted(e.name for e in entries if e.name.startswith(prefix) and not e.name.startswith("."))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror}.") from error

    def exists(self, name: str) -> bool:
        return os.path.exists(self.path / name)

    def read(self, name: str) -> bytes:
        try:
            with open_regular(self.path / name) as file:
                content: bytes = file.read()
                return content
        except OSError as error:
            raise ConfigError(f"{self.path / name} cannot be read: {error.strerror}.") from error

    def write(self, name: str, content: bytes) -> None:
        self._make()
        with replacing(self.path / name, ConfigError) as temporary:
            temporary.write_bytes(content)

    def create(self, name: str, content: bytes) -> bytes:
        with self.lock(name, wait=True):
            if not self.exists(name):
                self.write(name, content)
            return self.read(name)

    def delete(self, name: str) -> None:
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"{self.path / name} cannot be removed: {error.strerror}.") from error

    @contextlib.contextmanager
    def lock(self, name: str, *, wait: bool = False) -> Iterator[bool]:
        self._make()
        path = self.path / f".{name}.lock"
        try:
            file = open_regular(path, "ab+")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error
        with file:
            # the file stays: whoever waits for it would otherwise hold the lock of a file that is gone
            yield lock(file, 60.0 if wait else 2.0)

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be made: {error.strerror}.") from error


def open_output_folder(name: str | os.PathLike[str]) -> OutputFolder:
    """Return the output folder of that name, a path or a URL, which need not exist yet."""
    return RemoteFolder(os.fspath(name)) if is_url(name) else LocalFolder(Path(name))
