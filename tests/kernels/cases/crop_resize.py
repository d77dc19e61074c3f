"""Crops of images on a GPU against those on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.data.test_crop_resize import pack, random_crops
from tests.kernels.cases.numbers import (
    DEVICE,
)
from vitkit.data.crop_resize import Crops, crop_resize
from vitkit.kernels import crop_resize_triton
from vitkit.kernels.crop_resize_triton import crop_resize_on_gpu


@pytest.mark.parametrize(
    ("size", "channels", "longest"), [((20, 24), 3, 60), ((7, 50), 1, 120), ((16, 30), 5, 40), ((1, 2), 3, 9)]
)
def test_crops_are_resized_to_the_bits_of_the_plain_version(size: tuple[int, int], channels: int, longest: int):
    pixels, crops = pack(*random_crops(0, 5, longest, channels))
    expected = crop_resize(pixels, crops, size, channels)
    moved = {name: value.to(DEVICE) for name, value in vars(crops).items() if isinstance(value, Tensor)}
    found = crop_resize_on_gpu(pixels.to(DEVICE), Crops(**moved, most=crops.most), size, channels)
    assert torch.equal(found.cpu(), expected)


def test_crops_in_several_turns_are_those_of_one(monkeypatch: pytest.MonkeyPatch):
    pixels, crops = pack(*random_crops(1, 5, 30, 3))
    moved = {name: value.to(DEVICE) for name, value in vars(crops).items() if isinstance(value, Tensor)}
    there = (pixels.to(DEVICE), Crops(**moved, most=crops.most), (12, 9), 3)
    at_once = crop_resize_on_gpu(*there)
    monkeypatch.setattr(crop_resize_triton, "CHUNK_BYTES", 1)
    assert torch.equal(crop_resize_on_gpu(*there), at_once)
