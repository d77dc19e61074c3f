"""A process that decodes images of strangers, and that can be stopped: a thread cannot.

The processes come from Python's forkserver, which has imported the decoders and torch once: a new one starts in
milliseconds and shares that memory. Each has a bound on its memory, on the processor time of an image and on the time
that passes meanwhile. A decoder that crashes or hangs costs its own image an error, and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vitkit.errors import DecodeError
from vitkit.serve.decode_task import DecodedImage, DecodeTask, receive_answer, send_answer

BYTES_PER_PIXEL = 32  # decoding and resizing in float32 take 22 bytes for a pixel; another allocator may take more
SPARE_BYTES = 512 * 2**20  # for the uploaded bytes, their copies and the decoders' tables
EXIT_SECONDS = 10.0  # in which a process that was killed must be gone
NICENESS = 5  # of processes for large images: while those decode, the model and small images come first
_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
_context: Any = multiprocessing.get_context(_METHOD)
Image.init()  # registers the formats once, in the forkserver


class DecodeStopped(Exception):
    """The image took more time than it may, and the process that decoded it was killed."""


@dataclass(frozen=True)
class TimeLimit:
    """The time for one image: `processor` counts only while the process runs, so that a busy machine stops nobody."""

    processor: float
    elapsed: float


def prepare() -> None:
    """Start the forkserver, which imports the decoders while this process loads its models."""
    if _METHOD == "forkserver":
        from multiprocessing import forkserver

        _context.set_forkserver_preload([__name__])
        forkserver.ensure_running()


class DecodeProcess:
    """One decode process as the server sees it; `decode` and `stop` may be called from different threads."""

    def __init__(self, pixel_limit: int, niceness: int = 0):
        self.niceness = niceness
        self.memory = BYTES_PER_PIXEL * pixel_limit + SPARE_BYTES
        self.stopped = False
        self._process: Any = None
        self._connection: Connection | None = None

    @property
    def pid(self) -> int | None:
        return self._process and self._process.pid

    def start(self) -> None:
        """Start the process, if it is not running; OSError if the machine allows no more processes."""
        if self._process is not None and self._process.is_alive() and not self.stopped:
            return
        self.close()
        ours, theirs = _context.Pipe()
        self._process = _context.Process(
            target=_serve, args=(theirs, self.memory, self.niceness), name="vitkit-decode", daemon=True
        )
        try:
            self._process.start()
        except BaseException:
            self._process = None
            ours.close()
            raise
        finally:
            theirs.close()
        self._connection, self.stopped = ours, False

    def decode(self, task: DecodeTask, content: bytes, limit: TimeLimit) -> tuple[DecodedImage | DecodeError, float]:
        """Return what the task makes of the content, and the processor time that it took; DecodeStopped at the limit.

        A process that crashed, was stopped, or whose answer was nonsense or not read, is replaced for the next image.
        """
        self.start()
        assert self._connection is not None
        try:
            self._connection.send((task, limit))
            self._connection.send_bytes(content)
            return receive_answer(self._connection, task)
        except (OSError, EOFError, ValueError, KeyError, TypeError, multiprocessing.BufferTooShort):
            if self.close() in _TIMERS or self.stopped:
                raise DecodeStopped from None
            return DecodeError("the decoder crashed on this image, or needed too much memory"), limit.processor
        except BaseException:  # its answer may be unread, and would be taken for that to the next image
            self.close()
            raise

    def stop(self) -> None:
        """Kill the process; whoever waits for its answer gets DecodeStopped."""
        self.stopped = True
        if self._process is not None:
            self._process.kill()

    def close(self) -> int | None:
        """End the process, and return its exit code: a negative number is that of the signal which killed it."""
        if self._process is None:
            return None
        process, self._process = self._process, None
        process.kill()
        process.join(EXIT_SECONDS)
        code: int | None = process.exitcode
        if self._connection is not None:
            self._connection.close()
        return code


# the signals of the timers below, which no program handles: they kill it, also in the middle of a decoder
_TIMERS = tuple(-getattr(signal, name) for name in ("SIGPROF", "SIGALRM") if hasattr(signal, name))


def _serve(connection: Connection, memory: int, niceness: int) -> None:
    """Decode until the server closes its end, or has died. Signals to the group are for the server, which drains."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    warnings.simplefilter("ignore")  # strangers would write to the server's stderr, as much as they like
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)
    with open(os.devnull, "wb") as nowhere:  # libtiff and libjpeg write there themselves
        os.dup2(nowhere.fileno(), 2)
    torch.set_num_threads(1)
    _limit_memory(memory)
    if hasattr(os, "nice"):
        os.nice(niceness)
    with contextlib.suppress(EOFError, OSError):
        while True:
            task, limit = connection.recv()
            content = connection.recv_bytes()
            started = time.process_time()
            with _time_limit(limit):
                try:
                    decoded: DecodedImage | DecodeError = task(content)
                except DecodeError as error:
                    decoded = error
            del content
            send_answer(connection, decoded, time.process_time() - started)


def _limit_memory(memory: int) -> None:
    """Bound the address space to what the libraries take already and `memory` more: then a decoder gets MemoryError."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        used = pages * os.sysconf("SC_PAGE_SIZE")
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        bound = used + memory if most == resource.RLIM_INFINITY else min(used + memory, most)
        resource.setrlimit(resource.RLIMIT_AS, (bound, most))
    except (ImportError, OSError, ValueError):  # not Linux: only the limits on pixels and time hold there
        pass


@contextlib.contextmanager
def _time_limit(limit: TimeLimit) -> Iterator[None]:
    """Have the kernel kill this process at the limit, even if the server is gone that would have done it."""
    if not hasattr(signal, "setitimer"):
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, limit.processor)
    signal.setitimer(signal.ITIMER_REAL, limit.elapsed + 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
