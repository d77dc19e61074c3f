"""The batch size of inference follows the device and its memory."""

from __future__ import annotations

import pytest
import torch

import vitkit
from vitkit.compute import batch_size
from vitkit.compute.batch_size import LARGE, SMALL, inference_batch


@pytest.mark.parametrize(
    ("model", "device", "gigabytes", "expected"),
    [
        ("Ti/16", "cpu", 500, SMALL),
        ("Ti/16", "cuda", 16, LARGE),
        ("Ti/16", "cuda", 1, SMALL),
        ("R50x1", "cuda", 500, SMALL),
    ],
)
def test_a_gpu_with_room_gets_large_batches(
    model: str, device: str, gigabytes: int, expected: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(batch_size, "free_memory", lambda device: gigabytes * 2**30)
    assert inference_batch(vitkit.create(model, classes=2), torch.device(device)) == expected
