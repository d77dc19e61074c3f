"""Prefetched batches arrive complete and are not overwritten while the device still reads them."""

from __future__ import annotations

import pytest
import torch

from vitkit.data.batch import Batch
from vitkit.train.prefetch import Prefetcher, seed_generators


def batch(number: int, images: int = 8, *, pin: bool = False) -> Batch:
    made = Batch(
        images=torch.full((images, 3, 64, 64), number % 256, dtype=torch.uint8),
        labels=torch.full((images,), number),
        indices=torch.arange(images),
        epochs=torch.zeros(images, dtype=torch.int64),
    )
    return made.pin_memory() if pin else made


def test_on_a_cpu_the_batch_is_returned_unchanged():
    loaded = batch(3)
    moved = Prefetcher(torch.device("cpu"))(loaded)
    assert moved.images is loaded.images
    assert moved.labels is loaded.labels


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("pin", [True, False])
def test_a_slow_device_reads_each_batch_before_it_is_overwritten(pin: bool):
    device = torch.device("cuda", 0)
    prefetch, slow, values = Prefetcher(device), torch.randn(4096, 4096, device=device), []
    for number in range(24):
        moved = prefetch(batch(number, 8 if number < 20 else 5, pin=pin))
        for _ in range(4):
            slow = slow @ slow / slow.norm()  # the host is far ahead by the time that this is done
        values.append((moved.images.amin(), moved.images.amax(), moved.labels))
    for number, (least, most, labels) in enumerate(values):
        assert (least.item(), most.item()) == (number, number)
        assert labels.tolist() == [number] * (8 if number < 20 else 5)
    assert len(prefetch.buffers) == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_batch_on_the_device_is_not_copied():
    on_device = batch(1).to("cuda:0")
    assert Prefetcher(torch.device("cuda", 0))(on_device).images is on_device.images


DEVICES = [
    "cpu",
    pytest.param(
        "cuda:0",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
    ),
]


@pytest.mark.parametrize("name", DEVICES)
def test_generators_draw_what_they_draw_after_manual_seed(name: str):
    device = torch.device(name)
    for seed in (0, 7, 2**62 + 1):
        torch.manual_seed(seed)
        expected = torch.rand(5), torch.rand(5, device=device)
        seed_generators(device, seed)
        drawn = torch.rand(5), torch.rand(5, device=device)
        assert all(torch.equal(one, other) for one, other in zip(drawn, expected, strict=True))
