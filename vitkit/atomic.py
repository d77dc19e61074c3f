"""Files that are written completely or not at all, and files that one process at a time writes."""

import contextlib
import os
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from vitkit.errors import VitkitError
from vitkit.temporary_names import remove, remove_abandoned_once, temporary_path

fcntl: Any = None
with contextlib.suppress(ImportError):  # Windows has none: a file that another process writes is not detected there
    import fcntl

PATIENCE = 2.0  # a busy machine lets a new process wait for its first turn

_locked_files: weakref.WeakSet[IO[Any]] = weakref.WeakSet()


def lock(file: IO[Any], patience: float = PATIENCE) -> bool:
    """Lock an open file for this process and return whether that succeeded; False means that another one has it.

    The lock lasts until the file is closed or the process ends, however it ends: forked children, which may live on for
    seconds, do not keep it. Only a child that was forked just before its parent was killed has it until it runs for the
    first time, hence the `patience`, in seconds. A file system without locks leaves it to the user to write from one
    process only.
    """
    if fcntl is None:
        return True
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        except OSError:
            return True
        else:
            _locked_files.add(file)
            return True


def _release_locks_in_child() -> None:
    """Point the child's copies of locked files at the null device; closing them could move the parent's position."""
    for file in _locked_files:
        if not file.closed:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, file.fileno(), inheritable=False)
            os.close(null)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_locks_in_child)


@contextlib.contextmanager
def replacing(path: Path, error: type[VitkitError] = VitkitError) -> Iterator[Path]:
    """Yield a temporary file next to `path` that replaces it once written, so that a full disk or a kill loses nothing.

    The file has the permissions of any new file.
    """
    # a device or a pipe would be gone, and a file in its place; os.path: a name that is too long is no file
    if os.path.exists(path) and not os.path.isfile(path):
        raise error(f"{path} is not a regular file, and cannot be written.", try_="another name")
    remove_abandoned_once(path.parent.absolute())
    temporary = temporary_path(path.parent)
    try:
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)  # the kernel applies the umask
        mode = os.fstat(handle).st_mode & 0o777
        os.close(handle)
    except OSError as cause:
        raise error(f"{path} cannot be written: {cause.strerror}.") from cause
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(mode)  # libraries that write a file anew may make it private
        temporary.replace(path)
    except OSError as cause:
        raise error(f"{path} cannot be written: {cause.strerror or cause}.") from cause
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Yield a new folder that is removed at the end, or by a later process where this one is killed."""
    remove_abandoned_once(parent.absolute())
    folder = temporary_path(parent)
    folder.mkdir()
    try:
        yield folder
    finally:
        remove(folder)


def write_text(path: Path, text: str, error: type[VitkitError] = VitkitError) -> None:
    with replacing(path, error) as temporary:
        temporary.write_text(text, encoding="utf-8")
