"""Standard input, output and error of a command: one that is closed, full or without a reader is no traceback.

A verb whose result is what it prints ends: quietly with exit code 141 where the reader has gone, as in `… | head`, with
an error and exit code 2 where the output is closed or its disk is full. A run and a server go on without their
messages, for their results are elsewhere. Messages on standard error are never a reason to end.
"""

import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import Any

from vitkit import messages

LASTING = ("fit", "pretrain", "resume", "demo", "serve")  # the verbs that go on without standard output
BROKEN_PIPE = 141  # 128 + SIGPIPE, as shells report it
_STREAMS = ((0, "stdin", os.O_RDONLY), (1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY))


class OutputStream(io.RawIOBase):
    """A descriptor for output that remembers the first error and discards everything after it."""

    def __init__(self, descriptor: int, name: str, *, lasting: bool):
        self.descriptor, self.name, self.lasting = descriptor, name, lasting
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.descriptor

    def isatty(self) -> bool:
        return os.isatty(self.descriptor)

    def write(self, data: Any) -> int:
        if self.error is None:
            try:
                return os.write(self.descriptor, data)
            except BlockingIOError:  # a terminal or pipe that does not wait, and is full for now
                select.select([], [self.descriptor], [])
                return self.write(data)
            except OSError as error:
                self.error = error
                if not self.lasting:
                    raise
                if error.errno == errno.EPIPE and self.descriptor == 1:
                    messages.say("note", "nobody reads the output any more; the work goes on", file=sys.stderr)
        return len(data)


@contextlib.contextmanager
def guarded_streams() -> Iterator[OutputStream]:
    """Guard the standard streams of this process and yield standard output; streams that a program set itself stay."""
    _open_closed_ones()
    before = sys.stdout, sys.stderr
    output, errors = (
        OutputStream(1, "standard output", lasting=False),
        OutputStream(2, "standard error", lasting=True),
    )
    try:
        if sys.stdout is sys.__stdout__:
            sys.stdout = _as_text(sys.stdout, output)
        if sys.stderr is sys.__stderr__:
            sys.stderr = _as_text(sys.stderr, errors)
        yield output
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        sys.stdout, sys.stderr = before


def finish(output: OutputStream, command: str) -> None:
    """Write what is buffered; exit with the code of what has befallen the output, if anything has."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    if output.error is None or (output.lasting and output.error.errno in (errno.EPIPE, errno.EBADF)):
        return
    if output.error.errno == errno.EPIPE:
        sys.exit(BROKEN_PIPE)
    complete = "; the work itself is complete" if output.lasting else ""
    messages.error(command, f"{output.name} cannot be written: {output.error.strerror}{complete}.", exit_code=2)
    sys.exit(2)


def _open_closed_ones() -> None:
    """Open the null device in place of closed streams: the next file would get the number, and messages end in it.

    Writing to closed standard output stays an error, as the null device is opened for reading.
    """
    for descriptor, name, flags in _STREAMS:
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, flags)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
        if getattr(sys, name) is None:
            stream = open(descriptor, "r" if descriptor == 0 else "w", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _as_text(stream: Any, raw: OutputStream) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="backslashreplace",  # file names need not be valid text, and a message must not fail over them
        line_buffering=stream.line_buffering or raw.descriptor == 2,
    )
