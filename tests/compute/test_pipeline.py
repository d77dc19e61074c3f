"""Batches that arrive in parts are computed in order, one launched before the one before it is finished."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from vitkit.compute import pipeline
from vitkit.compute.pipeline import ComputedBatch, compute_batches, lent_parts
from vitkit.data.batch import Batch
from vitkit.data.evaluation_batches import sequential_batches
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.sources.dataset import PackedStrings, Split
from vitkit.data.split_dataset import SplitDataset
from vitkit.data.transforms import EvalTransform

CPU = torch.device("cpu")


class GreyImages:
    """A store whose image number n is n everywhere; some of them are broken."""

    def __init__(self, broken: frozenset[int]):
        self.broken = broken

    def read(self, row: int) -> bytes | np.ndarray:
        return b"broken" if row in self.broken else np.full((4, 4, 3), row, np.uint8)


def grey_split(images: int, broken: frozenset[int] = frozenset()) -> Split:
    names = PackedStrings(map(str, range(images)))
    return Split(names, np.full(images, -1), GreyImages(broken), np.arange(images))


def parts_of(split: Split, batch: int, part: int, *, workers: int = 0, pin_memory: bool = False) -> Iterator[Batch]:
    transform = EvalTransform(image=(4, 4), preprocessing=Preprocessing(mean=(0.0,) * 3, std=(1 / 255,) * 3))
    return sequential_batches(
        SplitDataset(split=split, transform=transform),
        batch,
        workers=workers,
        pin_memory=pin_memory,
        part=part,
        lend=lent_parts(batch),
    )


def check_grey(
    batches: list[tuple[ComputedBatch, np.ndarray]], images: int, batch: int, broken: frozenset[int]
) -> None:
    """Compare the outputs, which are the images themselves, with the numbers that they show."""
    assert [one.images for one, _ in batches] == [min(batch, images - first) for first in range(0, images, batch)]
    assert {index for one, _ in batches for index, _ in one.failures} == broken
    shown = np.concatenate([values for _, values in batches])
    indices = np.concatenate([one.indices for one, _ in batches])
    assert indices.tolist() == [index for index in range(images) if index not in broken]
    np.testing.assert_allclose(shown, np.broadcast_to(indices[:, None], shown.shape), atol=1e-3)


@pytest.mark.parametrize("in_flight", [0, 1, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_image_is_computed_once_in_order_in_batches_of_the_same_size(
    in_flight: int, workers: int, monkeypatch: pytest.MonkeyPatch
):
    """The outputs are views of the images: a part that was taken back too early would show other numbers."""
    monkeypatch.setattr(pipeline, "IN_FLIGHT", in_flight)
    monkeypatch.setattr(pipeline, "PART", 3)
    broken, sizes = frozenset({0, 21, 22, 23, 24, 25, 26, 27, 100}), []

    def compute(images: Tensor) -> tuple[Tensor]:
        sizes.append(len(images))
        return (images.flatten(1),)

    for batch in (3, 7, 200):  # 3: a part is a batch, and is not copied
        sizes.clear()
        computed = compute_batches(parts_of(grey_split(110, broken), batch, 3, workers=workers), batch, compute, CPU)
        seen = [(one, np.empty((0, 48)) if one.outputs is None else one.outputs[0].numpy().copy()) for one in computed]
        check_grey(seen, 110, batch, broken)
        assert sizes == [len(one.indices) for one, _ in seen if len(one.indices)]


def test_a_batch_is_launched_before_the_outputs_of_the_one_before_it_are_handed_out():
    events: list[str] = []

    def compute(images: Tensor) -> tuple[Tensor]:
        events.append(f"launch {int(images[0, 0, 0, 0].round())}")
        return (images,)

    for one in compute_batches(parts_of(grey_split(12), 4, 4), 4, compute, CPU):
        events.append(f"finish {one.indices[0]}")
    assert events == ["launch 0", "launch 4", "finish 0", "launch 8", "finish 4", "finish 8"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_was_launched_is_handed_out_before_an_error(error: type[BaseException]):
    def failing() -> Iterator[Batch]:
        yield from itertools.islice(parts_of(grey_split(20), 4, 4), 3)
        raise error

    finished: list[int] = []
    computed = compute_batches(failing(), 4, lambda images: (images,), CPU)
    with pytest.raises(error):
        finished.extend(index for one in computed for index in one.indices.tolist())
    assert finished == [*range(12)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("workers", [0, 3])
def test_a_gpu_reads_the_memory_that_workers_write_to(workers: int):
    device, broken = torch.device("cuda", 0), frozenset({5, 64, 65})

    def compute(images: Tensor) -> tuple[Tensor]:
        torch.cuda._sleep(2_000_000)  # the host runs ahead
        return (images.flatten(1) * 1.0,)

    parts = parts_of(grey_split(250, broken), 100, pipeline.PART, workers=workers, pin_memory=True)
    pinned: list[bool] = []

    def watched() -> Iterator[Batch]:
        for part in parts:
            pinned.append(part.images.is_pinned())
            yield part

    seen = []
    for one in compute_batches(watched(), 100, compute, device):
        assert one.outputs is not None
        assert one.outputs[0].is_pinned()
        seen.append((one, one.outputs[0].numpy().copy()))
    check_grey(seen, 250, 100, broken)
    assert all(pinned)
