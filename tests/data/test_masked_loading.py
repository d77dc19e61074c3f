"""Images and masks from the loader: the same from files, a cache and a device, and those of Pillow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.mask_images import write_masked_folder
from vitkit.config.resolve import resolve
from vitkit.data.evaluation_batches import sequential_batches
from vitkit.data.image_cache import estimate_bytes, fill_cache
from vitkit.data.loader import Loader
from vitkit.data.masked_transforms import MaskedEvalTransform, MaskedTrainTransform, split_mask
from vitkit.data.masks.ignore import IGNORE
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.sources.dataset import Split
from vitkit.data.sources.open import open_data
from vitkit.data.split_dataset import SplitDataset

CANVAS = (40, 56)
IMAGES = 6


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    folder = write_masked_folder(tmp_path_factory.mktemp("shapes"), IMAGES)
    return open_data(folder, task="segment").splits["train"]


def batches(split: Split, count: int = 4, **options: object) -> list[torch.Tensor]:
    dataset = SplitDataset(split=split, transform=MaskedTrainTransform(image=CANVAS), **options)
    loader = iter(Loader(dataset, batch_size=4))
    return [next(loader).images.clone() for _ in range(count)]


def test_a_cache_in_host_memory_and_one_that_is_cropped_in_batches_give_the_same(split: Split):
    transform = MaskedTrainTransform(image=CANVAS)
    cache = fill_cache(split, transform, 3, budget=1 << 20, threads=1)
    assert cache is not None
    assert cache.pixels.numel() == IMAGES * CANVAS[0] * CANVAS[1] * 4 == estimate_bytes(split, transform, 3)
    plain = batches(split)
    assert plain[0].shape == (4, 4, *CANVAS)
    for kept in (cache, cache.to(torch.device("cpu"))):  # as a GPU's is cropped
        for ours, theirs in zip(batches(split, cache=kept), plain, strict=True):
            assert torch.equal(ours, theirs)


def test_data_workers_give_the_same(split: Split):
    dataset = SplitDataset(split=split, transform=MaskedTrainTransform(image=CANVAS))
    loader = iter(Loader(dataset, batch_size=4, workers=2))
    for theirs in batches(split):
        assert torch.equal(next(loader).images, theirs)
    loader.close()


def test_images_and_masks_are_those_of_pillow(split: Split):
    """Pillow's nearest reads the pixel at the centre, too; at these sizes no centre lies between two pixels."""
    size = (32, 128)
    transform = MaskedEvalTransform(image=size, preprocessing=Preprocessing(resize="squash", crop=1.0))
    [batch] = sequential_batches(SplitDataset(split=split, transform=transform), IMAGES)
    _, masks = split_mask(batch.images)
    for index, mask in zip(batch.indices.tolist(), masks, strict=True):
        resized = Image.fromarray(split.read_mask(index, (48, 64))).resize(size[::-1], Image.Resampling.NEAREST)
        assert torch.equal(mask, torch.from_numpy(np.array(resized)))
        assert set(mask.unique().tolist()) <= {0, 1, 2, IGNORE}


def test_pretraining_reads_the_images_and_not_their_masks(tmp_path: Path):
    folder = write_masked_folder(tmp_path / "shapes", 3)
    asked = {"data": str(folder), "objective": "masked-patch", "weights": "none", "model": "mu/8"}
    config, data, _ = resolve(asked, pretraining=True)
    assert sum(len(one) for one in data.splits.values()) == 6
    assert config.objective == "masked-patch"
    assert open_data(folder, task=config.data_task).splits.keys() == data.splits.keys()
