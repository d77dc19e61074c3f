"""The masks that are scored: those that the model gives each image alone, however many are computed at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.mask_images import write_masked_folder
from tests.predict.small_segmenter import small_segmenter
from vitkit.data.sample import decode_sample
from vitkit.data.sources.open import open_data
from vitkit.evaluate.segmentation import compute_mask_of, predicted_masks


@pytest.mark.parametrize(("batch", "threads"), [(64, 0), (64, 2), (7, 0)])
def test_masks_in_batches_are_those_of_each_image(batch: int, threads: int, tmp_path: Path):
    split = open_data(write_masked_folder(tmp_path, 37, splits=("test",)), task="segment").splits["test"]
    compute = compute_mask_of(small_segmenter(), torch.device("cpu"), "fp32")
    masks = {one.index: one for one in predicted_masks(compute, split, np.arange(37), 3, batch, threads)}
    assert sorted(masks) == list(range(37))
    different = set()
    for index, one in masks.items():
        joined = decode_sample(split, index, 3, masks=True)
        alone = compute(np.ascontiguousarray(joined[..., :-1])).mask
        assert (one.mask != alone).mean() < 0.01  # a product of another batch may round a tie the other way
        np.testing.assert_array_equal(one.target, joined[..., -1])
        different.add(alone.tobytes())
    assert len(different) > 30
