"""The largest batch that fits on a device, as in the paper's Figure 12: tried by doubling, then by bisecting.

On a GPU, running out of memory is an error that can be caught. On a CPU it ends the process, so that there the closed
form alone answers.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from vitkit.bench.measure import Row, needed, prepare_row
from vitkit.bench.timing import out_of_memory, release
from vitkit.devices import free_memory
from vitkit.model.build import Model
from vitkit.model.config import ModelConfig

MOST = 1 << 15  # images: kernels count them in the 16 bits of a launch grid's dimension
EXACTNESS = 64  # the answer is at most one part in so many below the largest batch
CALLS = 2  # an optimizer allocates its state in the first step


@dataclass(frozen=True, kw_only=True)
class LargestBatch:
    """The answer for one row."""

    what: str
    precision: str
    compiled: bool
    estimate: int  # in closed form
    largest_batch: int | None  # tried on the device; None on a CPU, 0 if not even one image fits
    memory_bytes: int  # free on the device
    tried: dict[int, bool]  # batch → whether it fitted

    def record(self) -> dict[str, Any]:
        return asdict(self)


def largest_batch(model: Model, row: Row, device: torch.device) -> LargestBatch:
    """Find the largest batch of a row's work; the row's own batch does not matter."""
    release(device)
    memory = free_memory(device)
    estimate = estimated_batch(model.config, row, memory)
    tried: dict[int, bool] = {}

    def fits(batch: int) -> bool:
        tried[batch] = _fits(model, row, batch, device)
        return tried[batch]

    found = search(fits, max(estimate, 1)) if device.type == "cuda" else None
    return LargestBatch(
        what=row.what,
        precision=row.precision,
        compiled=row.compiled,
        estimate=estimate,
        largest_batch=found,
        memory_bytes=memory,
        tried=tried,
    )


def estimated_batch(config: ModelConfig, row: Row, memory: float) -> int:
    """Return the largest batch up to MOST whose closed form fits into memory, 0 if none does."""
    low, high = 0, MOST + 1
    while high - low > 1:
        middle = (low + high) // 2
        if needed(config, row.what, middle, bytes_per_number=row.bytes_per_number) <= memory:
            low = middle
        else:
            high = middle
    return low


def search(fits: Callable[[int], bool], start: int) -> int:
    """Return the largest batch that fits, up to MOST: halve or double from `start`, then bisect."""
    low, high = 0, MOST + 1
    batch = min(start, MOST)
    while low == 0 or high > MOST:
        if fits(batch):
            low = batch
            if low == MOST or high <= MOST:
                break
            batch = min(2 * batch, MOST)
        else:
            high = batch
            if high == 1 or low:
                break
            batch //= 2
    while high - low > max(1, low // EXACTNESS):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _fits(model: Model, row: Row, batch: int, device: torch.device) -> bool:
    try:
        prepare_row(model, row.with_batch(batch), device, calls=CALLS)
        return True
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return False
    finally:
        release(device)
