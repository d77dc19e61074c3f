"""Served segmentation models, and their masks as Python computes them."""

from __future__ import annotations

import base64
import io
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from tests.data.sample_images import encode, scene
from tests.predict.small_segmenter import small_segmenter
from tests.serve.servers import PATIENT, TIMEOUT, make_image, make_pool
from vitkit.predict.segmentation import ImageSegmenter
from vitkit.serve.limits import Limits
from vitkit.serve.model_pool import ModelPool
from vitkit.serve.segmenter_worker import SegmenterWorker

PHOTO = make_image(1, (60, 40), "JPEG")
TRAINED = (20, 30)
LARGE = encode(scene(90, 120), "PNG")


def mask_pool(limits: Limits = PATIENT, trained_size: tuple[int, int] | None = TRAINED, **options: Any) -> ModelPool:
    return make_pool(limits, masks=ImageSegmenter(small_segmenter(trained_size)), **options)


def python_mask(content: bytes, trained_size: tuple[int, int] | None = TRAINED) -> NDArray[np.uint8]:
    return ImageSegmenter(small_segmenter(trained_size))(content).mask


def read_mask(row: Any) -> NDArray[np.uint8]:
    """Return the mask of a row of the response, as the documentation reads it."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(row["mask"]))))


def assert_same(mask: NDArray[np.uint8], expected: NDArray[np.uint8]) -> None:
    """Rounding depends on the batch, and may decide between two classes of the same score."""
    assert mask.shape == expected.shape
    assert (mask == expected).mean() > 0.999


def gate_scores(pool: ModelPool) -> tuple[threading.Event, list[int]]:
    """Have the model of the pool wait for the event, and return a list that collects its batch sizes."""
    worker, gate, sizes = pool.workers["masks"], threading.Event(), []
    assert isinstance(worker, SegmenterWorker)
    compute = worker.compute.scores

    def scores(images: torch.Tensor) -> torch.Tensor:
        sizes.append(len(images))
        assert gate.wait(TIMEOUT)
        return compute(images)

    worker.compute = replace(worker.compute, scores=scores)
    return gate, sizes
