"""Read the file with the API key: a regular file, or the pipe of `--key-file <(pass show key)`, and never for ever."""

import os
import select
import stat
import time
from pathlib import Path

from vitkit.errors import ConfigError

MAX_BYTES = 4096
SECONDS = 10.0  # for a pipe; whoever types a passphrase for it has typed it before the model loads
_POLL_SECONDS = 0.05  # where a pipe without a writer counts as readable


def read_key_file(file: Path) -> str:
    """Return the text of the file; ConfigError for what is no such file, too long, or not written in time."""
    try:
        _check_kind(file, file.stat().st_mode)  # before it is opened, too: that alone can start a device
        # without O_NONBLOCK, opening a named pipe waits for its writer
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
        try:
            return _read(descriptor, file).decode("utf-8")
        finally:
            os.close(descriptor)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--key-file {file} cannot be read: {reason}") from None


def _check_kind(file: Path, mode: int) -> None:
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        kind = "a directory" if stat.S_ISDIR(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise ConfigError(f"--key-file {file} is {kind}", try_="a file that holds the key and nothing else")


def _read(descriptor: int, file: Path) -> bytes:
    mode = os.fstat(descriptor).st_mode
    _check_kind(file, mode)
    content, deadline = b"", time.monotonic() + SECONDS
    while len(content) <= MAX_BYTES:
        try:
            piece = os.read(descriptor, MAX_BYTES + 1 - len(content))
        except BlockingIOError:  # the writer has the pipe open and has not written yet
            piece = None
        if piece == b"" and (content or stat.S_ISREG(mode)):
            return content
        content += piece or b""
        if not piece:
            left = deadline - time.monotonic()
            if left <= 0:
                missing = "its end was not" if content else "nothing was"
                raise ConfigError(f"--key-file {file}: {missing} written into it within {SECONDS:g} s")
            select.select([descriptor], [], [], left)
            if piece == b"":
                time.sleep(_POLL_SECONDS)
    raise ConfigError(f"--key-file {file}: longer than {MAX_BYTES:,} bytes is no key")
