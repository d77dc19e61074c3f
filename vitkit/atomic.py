"""Files that appear whole or not at all, and folders that one process at a time writes to."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from vitkit.errors import VitkitError

fcntl: Any = None
with contextlib.suppress(ImportError):  # not on Windows, where a file in use is not noticed
    import fcntl


def locked(file: IO[Any]) -> bool:
    """Whether it is this process's alone from now on, until it is closed or the process ends, however it ends."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def replacing(path: Path, error: type[VitkitError] = VitkitError) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place once written: a full disk or a kill loses nothing."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
    except OSError as cause:
        raise error(f"{path} cannot be written: {cause.strerror}.") from cause
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as cause:
        raise error(f"{path} cannot be written: {cause.strerror or cause}.") from cause
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, error: type[VitkitError] = VitkitError) -> None:
    with replacing(path, error) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _umask() -> int:
    """mkstemp makes private files; these should have the permissions that any new file has."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
