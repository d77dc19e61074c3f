"""A pipeline from decoded images to outputs on the host, which finishes one batch while the device computes the next.

Data workers decode a batch in parts, into memory that the device copies from. The copies run beside the computation,
and the outputs of a batch are awaited only once the next batch has been launched. On a CPU the same code computes at
once, and there is nothing to wait for.

Shapes: B images of a batch that could be decoded, C channels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.data.batch import Batch

PART = 64  # images of a part: large batches would take much memory, a worker and two prefetched ones each
IN_FLIGHT = 1  # batches that have been launched when the outputs of the one before are awaited

Outputs = tuple[Tensor, ...]  # (B, …) each
ComputeOutputs = Callable[[Tensor], Outputs]  # of images (B, C, height, width) on the device, without waiting for it


@dataclass(frozen=True, eq=False)
class ComputedBatch:
    """The outputs of a batch, on the host."""

    images: int  # those that could not be decoded included
    indices: NDArray[np.int64]  # (B,) of the images in the split
    failures: tuple[tuple[int, str], ...]  # images that could not be decoded: index, reason
    outputs: Outputs | None  # None where no image could be decoded


def lent_parts(batch: int) -> int:
    """Return how long a part has to stay valid, in parts: until its batch is finished."""
    return (IN_FLIGHT + 1) * -(-batch // PART)


def compute_batches(
    parts: Iterable[Batch], batch: int, compute: ComputeOutputs, device: torch.device
) -> Iterator[ComputedBatch]:
    """Yield the outputs of one batch after another, each of `batch` images, which arrive in parts.

    What has been launched is yielded also where the parts end with an error, or with Ctrl-C.
    """
    launched: deque[_Launched] = deque()
    collected = _Collected(device)
    try:
        for part in parts:
            collected.add(part, batch)
            if collected.images == batch:
                launched.append(collected.launch(compute))
                if len(launched) > IN_FLIGHT:
                    yield launched.popleft().wait()
        if collected.images:
            launched.append(collected.launch(compute))
    except (Exception, KeyboardInterrupt):
        yield from (one.wait() for one in launched)
        raise
    yield from (one.wait() for one in launched)


@dataclass(frozen=True, eq=False)
class _Launched:
    """A batch whose outputs are on their way to the host."""

    batch: ComputedBatch
    parts: list[Batch]  # which the device may still read
    arrived: torch.cuda.Event | None  # None: they are there

    def wait(self) -> ComputedBatch:
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.batch


class _Collected:
    """The parts of the next batch, whose images are copied to the device as they come."""

    def __init__(self, device: torch.device):
        self.device = device
        self.copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._clear()

    def _clear(self) -> None:
        self.images, self.decoded = 0, 0
        self.parts: list[Batch] = []
        self.on_device: Tensor | None = None

    def add(self, part: Batch, batch: int) -> None:
        self.images += part.images_read()
        self.parts.append(part)
        if self.copies is not None and len(part.images):
            with torch.cuda.stream(self.copies):
                if self.on_device is None:
                    self.on_device = torch.empty(
                        batch, *part.images.shape[1:], dtype=part.images.dtype, device=self.device
                    )
                stop = self.decoded + len(part.images)
                self.on_device[self.decoded : stop].copy_(part.images, non_blocking=True)
        self.decoded += len(part.images)

    def launch(self, compute: ComputeOutputs) -> _Launched:
        """Launch the computation of the batch and the copies of its outputs, and begin the next batch."""
        outputs, arrived = None, None
        if self.decoded:
            with torch.no_grad():
                outputs = compute(self._input())
            # pinned memory on the host, as torch allocates it for a copy that does not block
            outputs = tuple(output.to("cpu", non_blocking=self.copies is not None) for output in outputs)
            if self.copies is not None:
                arrived = torch.cuda.current_stream(self.device).record_event(torch.cuda.Event(blocking=True))
        computed = ComputedBatch(
            self.images,
            np.concatenate([part.indices.numpy() for part in self.parts]),
            tuple(failure for part in self.parts for failure in part.failures),
            outputs,
        )
        launched = _Launched(computed, self.parts, arrived)
        self._clear()
        return launched

    def _input(self) -> Tensor:
        if self.copies is not None and self.on_device is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_stream(self.copies)
            self.on_device.record_stream(stream)  # its memory belongs to the copies, and is read here
            return self.on_device[: self.decoded]
        images = [part.images for part in self.parts if len(part.images)]
        return (images[0] if len(images) == 1 else torch.cat(images)).to(self.device)
