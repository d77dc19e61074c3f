"""Open regular files only: a pipe or a device under the name of a file would be waited for, or read, for ever."""

import os
import stat
from functools import cache
from typing import IO, Any

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_KERNEL = ("/proc", "/sys")  # their files count as regular, and some of them wait for the kernel to say something
_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)


class NotRegularFile(OSError):
    """A path that names something other than a regular file; `strerror` says what."""


def open_regular(path: str | os.PathLike[str], mode: str = "rb", **options: Any) -> IO[Any]:
    """Open a file as `open` does, or raise NotRegularFile, an OSError, at once; links are followed."""
    return open(path, mode, opener=_opener, **options)


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise what `open_regular` would, for a library that opens the path itself."""
    _check(os.stat(path), path)


def _opener(path: str, flags: int) -> int:
    try:
        check_regular(path)  # before it is opened: opening a device may already do something
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    handle = os.open(path, flags | _FLAGS, 0o666)
    try:
        _check(os.fstat(handle), path)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _check(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISREG(status.st_mode):
        if status.st_dev not in _kernel_devices():
            return
        kind = "a file of the kernel"
    else:
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
    raise NotRegularFile(None, f"it is {kind}, not a regular file", os.fspath(path))


@cache
def _kernel_devices() -> frozenset[int]:
    return frozenset(os.stat(path).st_dev for path in _KERNEL if os.path.ismount(path))
