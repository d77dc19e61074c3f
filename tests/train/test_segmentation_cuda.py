"""Segmentation on a CUDA device against the same on the CPU: augmentation, losses, caches, resumed runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.data.mask_images import write_masked_folder
from tests.data.test_mask_augment import joined_batch
from tests.train.runs import losses, rewind, toy, train_run, weights
from vitkit.config.schema import AdamW, Augmentation, Segment
from vitkit.data.mask_augment import MaskAugment, augment_with_masks
from vitkit.data.sources.dataset import Data
from vitkit.data.sources.open import open_data

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

HEADS = {"linear": Segment(head="linear"), "queries": Segment(head="queries", queries=6, query_blocks=1)}
PLAIN: dict[str, Any] = {
    "objective": "segment",
    "model": "mu/8",
    "image": (48, 64),
    "channels": 3,
    "resize": "squash",
    "steps": 8,
    "save_every": 4,
    "lr": 1e-3,
    "batch": 8,
    "micro": 8,
    "optimizer": AdamW(weight_decay=0.05),
    "augment": Augmentation(crop=None, scale=(0.5, 2.0), aspect=(0.9, 1.1), colour=0.5),
}


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return open_data(write_masked_folder(tmp_path_factory.mktemp("shapes"), 16), task="segment")


def test_images_and_masks_are_augmented_as_on_the_cpu():
    options = MaskAugment(scale=(0.3, 2.0), aspect=(0.8, 1.25), flip=True, colour=1.0)
    joined = joined_batch((50, 70), 8)
    pixels, masks = augment_with_masks(joined, np.arange(8), options, (40, 56), seed=1, epoch=0)
    on_gpu = augment_with_masks(joined.cuda(), np.arange(8), options, (40, 56), seed=1, epoch=0)
    assert_close(on_gpu[0].cpu(), pixels, atol=1e-4, rtol=0)
    assert (on_gpu[1].cpu() != masks).float().mean() < 1e-3  # pixels whose centre lies between two


def run_on(device: str, out: Path, shapes: Data, head: str, **settings: Any) -> Path:
    config = toy(out, **{**PLAIN, "data": shapes.name, "segment": HEADS[head], "device": device, **settings})
    return train_run(config, shapes)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("bf16", 5e-2)])
@pytest.mark.parametrize("cache", ["no", "gpu"])
def test_losses_of_the_linear_head_are_those_of_the_cpu(
    cache: str, precision: str, tolerance: float, shapes: Data, tmp_path: Path
):
    on_cpu = run_on("cpu", tmp_path / "cpu", shapes, "linear")
    on_gpu = run_on("cuda", tmp_path / "cuda", shapes, "linear", precision=precision, cache=cache)
    assert_close(losses(on_gpu), losses(on_cpu), atol=tolerance, rtol=0)


def test_mask_queries_learn_on_a_gpu(shapes: Data, tmp_path: Path):
    """Their points are drawn from the device's generator, so that losses are not those of the CPU."""
    run = run_on("cuda", tmp_path / "run", shapes, "queries", steps=60, precision="bf16", lr=2e-3)
    assert np.isfinite(losses(run)).all()
    assert np.mean(losses(run)[-5:]) < np.mean(losses(run)[:5])


@pytest.mark.parametrize("head", HEADS)
def test_a_resumed_run_is_near_an_uninterrupted_one(head: str, shapes: Data, tmp_path: Path):
    """Not bit for bit: on a GPU, the backward pass of the points that queries are compared at adds in any order."""
    uninterrupted = run_on("cuda", tmp_path / "uninterrupted", shapes, head)
    resumed = run_on("cuda", rewind(uninterrupted, tmp_path / "resumed"), shapes, head)
    assert_close(losses(resumed), losses(uninterrupted), atol=1e-3, rtol=1e-3)
    for name, tensor in weights(uninterrupted).items():
        assert_close(weights(resumed)[name], tensor, atol=1e-2, rtol=1e-2)
