"""Numbered batches computed by threads of this process, in the order of the numbers: for images that are in memory.

Cropping and resizing release the GIL, so threads run beside the training step, and beside each other. Nothing is
copied between processes, and no process has to be started.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from vitkit.data.batch import Batch
from vitkit.data.workers import BatchFunction, prefetched_batches

Result = TypeVar("Result")


def load_in_threads(
    make_batch: BatchFunction, numbers: Iterable[int], *, threads: int, pin_memory: bool = False
) -> Generator[Batch, None, None]:
    """Yield the batches of the numbers, prefetched by so many threads; with 0, the calling thread computes them."""

    def compute(number: int) -> Batch:
        batch = make_batch(number)
        return batch.pin_memory() if pin_memory else batch

    return map_in_threads(compute, numbers, threads=threads)


def map_in_threads(
    compute: Callable[[int], Result], numbers: Iterable[int], *, threads: int
) -> Generator[Result, None, None]:
    """Yield the results for the numbers, in their order, computed ahead by so many threads; with 0, by the caller's."""
    if not threads:
        yield from map(compute, numbers)
        return
    pool = ThreadPoolExecutor(threads, "vitkit-batches")
    ahead: deque[Future[Result]] = deque()
    try:
        for number in numbers:
            ahead.append(pool.submit(compute, number))
            if len(ahead) > prefetched_batches(threads):
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
