"""The checkpoint writer: a thread writes a copy of the training state while the steps go on.

A thread and not a process: writing, checksums and waiting for the disk release the GIL, and nothing is copied a second
time. torch's own `async_save` would hold the GIL while its Hugging Face storage serialises all tensors into one string.
At most one copy is on its way; a save that comes earlier waits, and the waiting is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from torch import Tensor

from vitkit.run_folder import RunFolder
from vitkit.text import counted, percent
from vitkit.train import checkpoint
from vitkit.train.checkpoint_staging import StagedState, Staging
from vitkit.train.distributed import Processes


@dataclass(frozen=True, kw_only=True)
class SaveCost:
    """The seconds that a save took: of the training's own time, of a processor beside it, and until it was complete."""

    copying: float
    processor: float = 0.0
    writing: float = 0.0

    def scaled(self, factor: float) -> SaveCost:
        return SaveCost(copying=factor * self.copying, processor=factor * self.processor, writing=factor * self.writing)


@dataclass(frozen=True, kw_only=True)
class CheckpointWait:
    """The checkpoints of a session, and the seconds and the share of its time that training has waited for them."""

    written: int
    seconds: float
    share: float

    def describe(self) -> str:
        written = counted(self.written, "checkpoint")
        share = percent(self.share)
        return f"{written} while training went on; it waited {self.seconds:.1f} s for them, {share} of its time"


class CheckpointWriter:
    """A context in which checkpoints are written in the background; leaving it waits for the last one.

    All ranks save at the same steps. Their threads have a process group of their own, so that they can wait for each
    other while the steps use the other one.
    """

    def __init__(self, folder: RunFolder, processes: Processes, state: Callable[[], Mapping[str, Tensor]]):
        self.folder = folder
        self.state = state  # returns every tensor that a step changes
        self.waited = 0.0  # seconds that training has waited for checkpoints
        self.processor = 0.0  # seconds that writing has taken of a processor
        self.written = 0
        self._staging = Staging(processes)
        self._group = processes.background()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._write: Future[None] | None = None
        self._bytes, self._cost = 0, SaveCost(copying=0.0)  # of the latest save

    def save(self, record: Mapping[str, Any], kept: tuple[int, ...] = ()) -> None:
        """Copy the state and have it written; the checkpoints of the steps in `kept` stay, and the two latest ones.

        Raise if the write before has failed.
        """
        self.wait()
        began, state = time.perf_counter(), self.state()
        staged = self._staging.copy(state)
        copying = time.perf_counter() - began
        self.waited += copying
        self._bytes, self._cost = _size(state), SaveCost(copying=copying)
        self._write = self._thread.submit(self._write_checkpoint, staged, dict(record), kept)

    def wait(self) -> None:
        """Wait until the write in flight, if there is one, is complete; raise if it has failed."""
        if self._write is None:
            return
        began = time.perf_counter()
        write, self._write = self._write, None
        try:
            write.result()
        finally:
            self.waited += time.perf_counter() - began

    @property
    def busy(self) -> bool:
        return self._write is not None and not self._write.done()

    @property
    def failed(self) -> bool:
        return self._write is not None and self._write.done() and self._write.exception() is not None

    def expected_cost(self) -> SaveCost:
        """Estimate the cost of the next save from the latest one and the sizes of both."""
        return self._cost.scaled(_size(self.state()) / self._bytes if self._bytes else 0.0)

    def wait_of(self, elapsed: float) -> CheckpointWait:
        """Return how long training has waited, and which share of the elapsed seconds that is."""
        return CheckpointWait(
            written=self.written,
            seconds=round(self.waited, 3),
            share=round(self.waited / elapsed, 5) if elapsed else 0.0,
        )

    def _write_checkpoint(self, staged: StagedState, record: dict[str, Any], kept: tuple[int, ...]) -> None:
        began, processor = time.perf_counter(), time.thread_time()
        if self._group.is_rank_zero:
            self.folder.sync_metrics()
        checkpoint.write(self.folder.checkpoints, staged, record, self._group)
        if self._group.is_rank_zero:
            checkpoint.keep_latest(self.folder.checkpoints, record["step"], kept)
        self.written += 1
        used = time.thread_time() - processor
        self.processor += used
        self._cost = SaveCost(copying=self._cost.copying, processor=used, writing=time.perf_counter() - began)

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.wait()
        finally:
            self._thread.shutdown(wait=True)  # also after an error: what is being written is worth having
            self._group.leave()


def _size(state: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in state.values())
