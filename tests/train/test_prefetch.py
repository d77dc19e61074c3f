"""Batches travel to a device whole, and stay whole while it is behind."""

from __future__ import annotations

import pytest
import torch

from vitkit.data.batch import Batch
from vitkit.train.prefetch import Sender


def batch(number: int, pictures: int = 8, *, pin: bool = False) -> Batch:
    made = Batch(
        images=torch.full((pictures, 3, 64, 64), number % 256, dtype=torch.uint8),
        labels=torch.full((pictures,), number),
        indices=torch.arange(pictures),
        epochs=torch.zeros(pictures, dtype=torch.int64),
    )
    return made.pin_memory() if pin else made


def test_on_the_host_a_batch_is_itself():
    given = batch(3)
    sent = Sender(torch.device("cpu"))(given)
    assert sent.images is given.images
    assert sent.labels is given.labels


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("pin", [True, False])
def test_a_device_that_is_behind_reads_each_batch_before_the_next_takes_its_place(pin: bool):
    device = torch.device("cuda", 0)
    send, slow, seen = Sender(device), torch.randn(4096, 4096, device=device), []
    for number in range(24):
        sent = send(batch(number, 8 if number < 20 else 5, pin=pin))
        for _ in range(4):
            slow = slow @ slow / slow.norm()  # the host is far ahead by the time that this is done
        seen.append((sent.images.amin(), sent.images.amax(), sent.labels))
    for number, (least, most, labels) in enumerate(seen):
        assert (least.item(), most.item()) == (number, number)
        assert labels.tolist() == [number] * (8 if number < 20 else 5)
    assert len(send.places) == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_is_there_already_stays():
    there = batch(1).to("cuda:0")
    assert Sender(torch.device("cuda", 0))(there).images is there.images
