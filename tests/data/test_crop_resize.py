"""The batched crop and resize against torch's own uint8 kernel and against Pillow, one crop at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from vitkit.data import crop_resize as module
from vitkit.data.crop_resize import Crops, crop_resize
from vitkit.data.resize import Size

Box = tuple[int, int, int, int]  # left, top, right, bottom


def pack(images: list[np.ndarray], boxes: list[Box], flips: list[bool]) -> tuple[Tensor, Crops]:
    """Return the images one behind the other, and the boxes in them."""
    offsets = np.cumsum([0, *(image.size for image in images)])
    strides = [image.shape[1] * image.shape[2] for image in images]
    starts = [
        offset + top * stride + left * image.shape[2]
        for offset, stride, image, (left, top, *_) in zip(offsets, strides, images, boxes, strict=False)
    ]
    heights, widths = zip(*((bottom - top, right - left) for left, top, right, bottom in boxes), strict=True)
    crops = Crops(
        start=torch.tensor(starts),
        stride=torch.tensor(strides),
        height=torch.tensor(heights),
        width=torch.tensor(widths),
        flipped=torch.tensor(flips),
        most=(max(heights), max(widths)),
    )
    return torch.from_numpy(np.concatenate([image.ravel() for image in images])), crops


def random_crops(seed: int, count: int, longest: int, channels: int) -> tuple[list[np.ndarray], list[Box], list[bool]]:
    random = np.random.default_rng(seed)
    images, boxes = [], []
    for _ in range(count):
        height, width = random.integers(1, longest + 1, 2)
        images.append(random.integers(0, 256, (height, width, channels), dtype=np.uint8))
        left, right = np.sort(random.choice(width + 1, 2, replace=False))
        top, bottom = np.sort(random.choice(height + 1, 2, replace=False))
        boxes.append((int(left), int(top), int(right), int(bottom)))
    return images, boxes, random.random(count) < 0.5


def with_torch(image: np.ndarray, box: Box, flip: bool, size: Size) -> Tensor:
    left, top, right, bottom = box
    crop = torch.from_numpy(np.ascontiguousarray(image[top:bottom, left:right])).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(crop, size, mode="bilinear", antialias=True)[0]
    return resized.flip(-1) if flip else resized


@given(
    seed=st.integers(0, 2**31),
    size=st.tuples(st.integers(1, 50), st.integers(2, 50)),
    channels=st.sampled_from([1, 3, 5]),
    longest=st.sampled_from([3, 40, 300]),
)
def test_every_crop_of_a_batch_is_what_torch_makes_of_it_alone(seed: int, size: Size, channels: int, longest: int):
    """The arithmetic is the same. A processor that fuses products and sums may round a weight to the other side, which
    is one part in 2 ** 14 or more of a pixel, and can turn the rounding of a sum that is next to a half."""
    images, boxes, flips = random_crops(seed, 4, longest, channels)
    ours = crop_resize(*pack(images, boxes, flips), size, channels)
    theirs = torch.stack([with_torch(*one, size) for one in zip(images, boxes, flips, strict=True)])
    difference = (ours.int() - theirs.int()).abs()
    assert ours.shape == theirs.shape
    assert difference.max() <= 1
    assert difference.sum() <= max(2, 1e-3 * difference.numel())


@given(seed=st.integers(0, 2**31), size=st.tuples(st.integers(1, 50), st.integers(1, 50)))
def test_a_crop_is_within_two_grey_levels_of_pillows(seed: int, size: Size):
    """Pillow's weights have 22 bits where these have 14 and more: each of the two passes can round differently."""
    images, boxes, flips = random_crops(seed, 3, 120, 3)
    ours = crop_resize(*pack(images, boxes, flips), size, 3).numpy()
    for result, image, box, flip in zip(ours, images, boxes, flips, strict=True):
        left, top, right, bottom = box
        crop = Image.fromarray(np.ascontiguousarray(image[top:bottom, left:right]))
        theirs = np.asarray(crop.resize(size[::-1], Image.Resampling.BILINEAR)).astype(int)
        assert np.abs(result.transpose(1, 2, 0) - (theirs[:, ::-1] if flip else theirs)).max() <= 2


def test_crops_in_several_turns_are_those_of_one(monkeypatch: pytest.MonkeyPatch):
    packed = pack(*random_crops(0, 9, 60, 3))
    at_once = crop_resize(*packed, (20, 24), 3)
    monkeypatch.setattr(module, "CHUNK_BYTES", 1)  # one crop at a time
    assert torch.equal(crop_resize(*packed, (20, 24), 3), at_once)


@pytest.mark.gpu
def test_a_gpu_gives_the_bits_of_the_cpu():
    pixels, crops = pack(*random_crops(0, 40, 400, 3))
    moved = {name: value.cuda() for name, value in vars(crops).items() if isinstance(value, Tensor)}
    on_gpu = crop_resize(pixels.cuda(), Crops(**moved, most=crops.most), (224, 224), 3)
    assert torch.equal(on_gpu.cpu(), crop_resize(pixels, crops, (224, 224), 3))
