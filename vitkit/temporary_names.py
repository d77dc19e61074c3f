"""Names of temporary files and folders that tell who writes them, so that those of killed processes are removed.

.vitkit-0a1b2c3d-4711-123456-9f8e7d6c.tmp: the machine since it was started, the process, the process's own start, and
a random part. On the same machine, a file is abandoned once its process has ended; the start tells it from a later one
with the same number. Files of other machines, which a network file system shows as well, are abandoned after a day.
"""

import contextlib
import functools
import hashlib
import os
import re
import secrets
import shutil
import socket
import time
from pathlib import Path

ABANDONED = 86_400.0  # seconds without a change after which a file of another machine has no writer any more
_NAME = re.compile(r"\.vitkit-([0-9a-f]{8})-(\d{1,10})-(\d{1,20})-[0-9a-f]{8}\.tmp", re.ASCII)


def temporary_path(folder: Path) -> Path:
    """Return a name in the folder that no file has yet; it belongs to this process."""
    process = os.getpid()
    return folder / f".vitkit-{_machine()}-{process}-{_started(process)}-{secrets.token_hex(4)}.tmp"


def remove_abandoned(folder: Path) -> None:
    """Remove temporary files and folders whose process has ended, in this folder, not below it."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if is_abandoned(entry):
                remove(Path(entry.path))


@functools.cache
def remove_abandoned_once(folder: Path) -> None:
    """Remove what is abandoned, the first time in this process; a folder may have a million other files."""
    remove_abandoned(folder)


def is_temporary(name: str) -> bool:
    """Return whether a name is one of `temporary_path`."""
    return _NAME.fullmatch(name) is not None


def is_abandoned(entry: os.DirEntry[str]) -> bool:
    if (name := _NAME.fullmatch(entry.name)) is None:
        return False
    machine, process, started = name[1], int(name[2]), int(name[3])
    if machine == _machine() and os.name != "nt" and (now := _started(process)) != 0:
        return now is None or (started != 0 and now != started)
    try:
        return time.time() - entry.stat(follow_symlinks=False).st_mtime > ABANDONED
    except OSError:
        return False


def remove(path: Path) -> None:
    """Remove a file or a folder with its content, if that is possible."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@functools.cache
def _machine() -> str:
    """Return a name of this machine since it was started, and of this container: elsewhere, numbers mean others."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def _started(process: int) -> int | None:
    """Return when a process was started, in the kernel's ticks; 0 where the system does not tell, None without it."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name before it may hold anything
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):  # not Linux, or it hides the processes of others
        pass
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except OSError:  # of another user
        pass
    return 0
