"""Every image of a split once, in order, as batches: for scores, predictions and features."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence

from torch import Tensor

from vitkit.data.batch import Batch
from vitkit.data.batch_builder import BatchBuilder
from vitkit.data.failures import MAX_FAILED, record_failures
from vitkit.data.sources.dataset import Split
from vitkit.data.split_dataset import SplitDataset
from vitkit.data.threads import load_in_threads
from vitkit.data.workers import load_batches


def evaluation_batches(
    dataset: SplitDataset,
    batch_size: int,
    *,
    workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
    pin_memory: bool = False,
    max_failed: float = MAX_FAILED,
    images: int | None = None,
    part: int | None = None,
    lend: int = 0,
    threads: int = 0,
) -> Iterator[Batch]:
    """Yield every image of the split once, in order; batches list the images that cannot be decoded as failures.

    A batch may be empty. If more than `max_failed` of the images fail, this raises an error: a score over the rest
    would mislead. The share is of `images` where the split is a part of them.
    """
    batches = sequential_batches(
        dataset,
        batch_size,
        workers=workers,
        rank=rank,
        world_size=world_size,
        pin_memory=pin_memory,
        part=part,
        lend=lend,
        threads=threads,
    )
    yield from checked_batches(batches, dataset.split, max_failed, images)


def checked_batches(
    batches: Iterable[Batch], split: Split, max_failed: float, images: int | None = None
) -> Iterator[Batch]:
    """Yield the batches of a pass over the split; log their failures, and raise an error when there are too many."""
    failures: dict[int, str] = {}
    for batch in batches:
        record_failures(failures, batch, split, max_failed, images)
        yield batch


def sequential_batches(
    dataset: SplitDataset,
    batch_size: int,
    *,
    workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
    pin_memory: bool = False,
    part: int | None = None,
    lend: int = 0,
    threads: int = 0,
) -> Generator[Batch, None, None]:
    """Yield every image of the split once, in order, however many fail: the caller handles the failures.

    With `part`, a batch comes in parts of at most so many images, which workers decode side by side. `lend` is that of
    `load_batches`. With `threads`, this process decodes with so many instead of in workers.
    """
    own = range(rank, len(dataset.split), world_size)
    batches = (own[first : first + batch_size] for first in range(0, len(own), batch_size))
    size = part or batch_size
    chunks = [batch[first : first + size] for batch in batches for first in range(0, len(batch), size)]
    if chunks and threads:
        yield from load_in_threads(_Chunks(dataset, chunks), range(len(chunks)), threads=threads, pin_memory=pin_memory)
    elif chunks:
        yield from load_batches(
            _Chunks(dataset, chunks),
            range(len(chunks)),
            dataset.empty_batch(len(chunks[0])),
            workers=workers,
            pin_memory=pin_memory,
            lend=lend,
        )


class _Chunks:
    """The batch function of evaluation: chunk number → its batch."""

    def __init__(self, dataset: SplitDataset, chunks: Sequence[Sequence[int]]):
        self.dataset, self.chunks = dataset, chunks

    def __call__(self, number: int, images: Tensor | None = None) -> Batch:
        chunk = self.chunks[number]
        dataset = self.dataset.read_ahead(chunk)
        builder = BatchBuilder(dataset, dataset.empty_batch(len(chunk)) if images is None else images)
        for index in chunk:
            builder.add(0, index)
        return builder.build()
