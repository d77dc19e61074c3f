"""The decode processes of a server, and whose image they decode next.

Jobs wait in a fair queue, by client and request. One process takes short jobs only: a photo never waits for more than
the short jobs in progress, however large the images of others are. A job that proves longer than it seemed is stopped,
and waits again as a long one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from vitkit.errors import DecodeError
from vitkit.serve import decode_process
from vitkit.serve.client_use import ClientUse
from vitkit.serve.decode_process import NICENESS, DecodeProcess, DecodeStopped, TimeLimit
from vitkit.serve.decode_task import DecodedImage, DecodeTask
from vitkit.serve.fair_queue import FairQueue, Ticket
from vitkit.serve.limits import Limits
from vitkit.serve.upload import Upload

# measured: 49 megapixels take 1.5 s to decode and resize as WebP and 1.2 s as JPEG; the bytes matter to PNG
SECONDS_PER_JOB, SECONDS_PER_PIXEL, SECONDS_PER_BYTE = 1e-3, 30e-9, 20e-9
SHORT_SECONDS = 0.5  # up to this estimate a job is short: a photo of 12 megapixels takes 0.2 s
SHORT_LIMIT = 2.0  # seconds of processor time until a short job is stopped, and waits again as a long one


@dataclass(eq=False)
class _Job:
    task: DecodeTask
    content: bytes
    result: asyncio.Future[DecodedImage]
    ticket: Ticket[_Job] | None = None

    def limit(self, limits: Limits) -> TimeLimit:
        processor = limits.decode_seconds if self.long else min(limits.decode_seconds, SHORT_LIMIT)
        return TimeLimit(processor, limits.seconds)

    @property
    def long(self) -> bool:
        assert self.ticket is not None
        return self.ticket.cost > SHORT_SECONDS


def estimate_seconds(upload: Upload) -> float:
    """Estimate the processor time to decode and resize an image, from its header and its length."""
    return SECONDS_PER_PIXEL * upload.pixels + least_seconds(upload.content)


def least_seconds(content: bytes) -> float:
    """Return what an image is charged at least: one that is refused at once still had to be sent to a process."""
    return SECONDS_PER_JOB + SECONDS_PER_BYTE * len(content)


class DecodePool:
    """Decodes images in two or more processes; only the event loop's thread calls it, after `start`."""

    def __init__(self, processes: int, limits: Limits):
        assert processes >= 2
        self.limits = limits
        self.express = DecodeProcess(limits.pixels)  # for short jobs only
        self.processes = [self.express, *(DecodeProcess(limits.pixels, NICENESS) for _ in range(1, processes))]
        self.use = ClientUse()
        self._free = list(self.processes)
        self._queue: FairQueue[_Job] = FairQueue()
        # a thread for each process, which waits for its answer
        self._executor = ThreadPoolExecutor(processes, "vitkit-decode")
        decode_process.prepare()

    def start(self) -> None:
        """Start all processes; without this, each starts with its first image."""
        list(self._executor.map(DecodeProcess.start, self.processes))

    def shutdown(self) -> None:
        """Kill the processes: nobody waits for their answers any more."""
        for process in self.processes:
            process.stop()
        self._executor.shutdown(cancel_futures=True)
        for process in self.processes:
            process.close()

    async def decode(self, task: DecodeTask, upload: Upload, *, client: Hashable, request: Hashable) -> DecodedImage:
        """Return the decoded image in its turn; DecodeError if it cannot be decoded within the limits."""
        job = _Job(task, upload.content, asyncio.get_running_loop().create_future())
        self._push(job, client, request, estimate_seconds(upload))
        try:
            return await job.result
        finally:
            assert job.ticket is not None
            if not job.ticket.running:  # the request has ended before its turn
                self._queue.remove(job.ticket)

    def _push(self, job: _Job, client: Hashable, request: Hashable, cost: float) -> None:
        job.ticket = self._queue.push(job, client=client, request=request, cost=cost)
        self._start_jobs()

    def _start_jobs(self) -> None:
        while self._free and (ticket := self._queue.pop(self._may_start, self._over_budget)) is not None:
            short = not ticket.item.long and self.express in self._free
            process = self.express if short else next(other for other in self._free if other is not self.express)
            self._free.remove(process)
            self._start_job(ticket, process)

    def _may_start(self, ticket: Ticket[_Job]) -> bool:
        return not ticket.item.long or self._free != [self.express]

    def _over_budget(self, client: Hashable) -> bool:
        return self.use.of(client) > self.limits.client_seconds

    def _start_job(self, ticket: Ticket[_Job], process: DecodeProcess) -> None:
        job, loop = ticket.item, asyncio.get_running_loop()
        limit = job.limit(self.limits)
        timer = loop.call_later(limit.elapsed, process.stop)

        def finish(done: Future[tuple[DecodedImage | DecodeError, float]]) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits
                loop.call_soon_threadsafe(self._finish_job, ticket, process, timer, limit, done)

        self._executor.submit(process.decode, job.task, job.content, limit).add_done_callback(finish)

    def _finish_job(
        self,
        ticket: Ticket[_Job],
        process: DecodeProcess,
        timer: asyncio.TimerHandle,
        limit: TimeLimit,
        done: Future[tuple[DecodedImage | DecodeError, float]],
    ) -> None:
        job = ticket.item
        timer.cancel()
        self._free.append(process)
        decoded, seconds = _outcome(done, limit)
        seconds = max(seconds, least_seconds(job.content))
        self.use.add(ticket.client, seconds)
        self._queue.finish(ticket, seconds)
        if not job.result.done():
            if decoded is None and limit.processor < self.limits.decode_seconds:
                self._push(job, ticket.client, ticket.request, self.limits.decode_seconds)
            elif isinstance(decoded, DecodedImage):
                job.result.set_result(decoded)
            else:
                text = f"it took longer than {self.limits.decode_seconds} s to decode"
                job.result.set_exception(decoded or DecodeError(text))
        self._start_jobs()


def _outcome(
    done: Future[tuple[DecodedImage | DecodeError, float]], limit: TimeLimit
) -> tuple[DecodedImage | Exception | None, float]:
    """Return the image, or its error, or None if it was stopped, and the seconds that it is charged."""
    try:
        return done.result()
    except DecodeStopped:
        return None, limit.processor
    except OSError as error:  # no process could be started
        return DecodeError(f"the server could not start a decoder: {error.strerror or error}"), 0.0
    except Exception as error:  # a mistake of ours; nobody may wait for ever
        return error, 0.0
