"""Decoding for a segmentation model: whole images and windows, and answers that cannot be true."""

from __future__ import annotations

import io
from multiprocessing import Pipe

import numpy as np
import pytest
import torch

from tests.data.sample_images import encode, scene
from tests.predict.small_segmenter import small_segmenter
from vitkit.compute.windows import window_grid
from vitkit.data.transforms import EvalTransform
from vitkit.errors import DecodeError
from vitkit.serve.decode_task import DecodedImage, receive_answer, send_answer
from vitkit.serve.segment_task import SegmentTask

TRAINED = (20, 30)


def task(trained_size: tuple[int, int] | None = TRAINED, windows: int = 20) -> SegmentTask:
    model = small_segmenter()
    transform = EvalTransform(image=model.config.image, preprocessing=model.metadata.preprocessing)
    return SegmentTask(transform, 3, 10**6, trained_size=trained_size, window_limit=windows)


def test_an_image_up_to_four_times_the_size_of_training_is_resized_as_a_whole():
    decoded = task()(encode(scene(40, 60), "PNG"))
    assert decoded.size == (40, 60)
    assert torch.equal(decoded.image, task().transform(scene(40, 60)))
    assert task(None)(encode(scene(300, 400), "PNG")).image.shape == (3, 32, 32)


def test_a_large_image_becomes_its_windows_row_by_row():
    pixels = scene(50, 70)
    decoded = task()(encode(pixels, "PNG"))
    rows, columns = window_grid((50, 70), TRAINED)
    assert decoded.image.shape == (len(rows) * len(columns), 3, 32, 32)
    spans = [(row, column) for row in rows for column in columns]
    for window, (row, column) in zip(decoded.image, spans, strict=True):
        assert torch.equal(window, task().transform(pixels[slice(*row), slice(*column)]))


def test_windows_over_the_limit_are_counted_before_they_are_resized():
    """A line of 600,000 pixels takes a kilobyte as PNG, and would have thousands of windows."""
    with pytest.raises(DecodeError, match=r"600000 x 1 pixels .* 27,273 windows of 30 x 20, over the limit of 20"):
        task()(encode(np.zeros((1, 600_000, 3), np.uint8), "PNG"))


@pytest.mark.parametrize("size", [(40, 60), (50, 70)])
def test_an_image_goes_through_a_pipe_and_back(size: tuple[int, int]):
    ours, theirs = Pipe()
    decoded = task()(encode(scene(*size), "PNG"))
    send_answer(theirs, decoded, 0.5)
    received, seconds = receive_answer(ours, task())
    assert isinstance(received, DecodedImage)
    assert (received.size, seconds) == (size, 0.5)
    assert torch.equal(received.image, decoded.image)


@pytest.mark.parametrize("size", [(0, 60), (-4, -4), (2000, 2000), (900, 900)])
def test_a_decoder_that_lies_about_the_size_is_not_believed(size: tuple[int, int]):
    """2000 x 2000 is over the limit of pixels, 900 x 900 over that of windows."""
    ours, theirs = Pipe()
    send_answer(theirs, DecodedImage(torch.zeros(3, 32, 32), size=size), 0.1)
    with pytest.raises(ValueError, match=r"an image of a size|more windows"):
        receive_answer(ours, task())


def test_other_bytes_than_the_size_asks_for_are_an_error():
    ours, theirs = Pipe()
    send_answer(theirs, DecodedImage(torch.zeros(3, 32, 32), size=(50, 70)), 0.1)
    with pytest.raises(ValueError, match="another size"):
        receive_answer(ours, task())


def test_the_16_bits_of_an_image_are_kept():
    file = io.BytesIO()
    np.save(file, (scene(10, 20).astype(np.uint16) << 8) + 99)
    decoded = task()(file.getvalue())
    assert decoded.size == (10, 20)
    assert not torch.equal(decoded.image, task().transform(scene(10, 20)))
