"""The loader gives the same batches for any number of workers and ranks, and replaces broken images."""

from __future__ import annotations

import itertools
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.data.sample_images import encode, scene
from vitkit.data.batch import Batch
from vitkit.data.batch_builder import first_images
from vitkit.data.decode import decode
from vitkit.data.epoch_sampler import EpochSampler
from vitkit.data.evaluation_batches import evaluation_batches
from vitkit.data.failures import TooManyFailures, advised_max_failed, allowed_failures
from vitkit.data.loader import Loader
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.sources.dataset import Data, DataError
from vitkit.data.sources.open import open_data
from vitkit.data.split_dataset import SplitDataset
from vitkit.data.stateless_rng import generator
from vitkit.data.transforms import EvalTransform, TrainTransform
from vitkit.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores

TRAIN = TrainTransform(image=(16, 16))
EVAL = EvalTransform(image=(16, 16), preprocessing=Preprocessing())


@pytest.fixture
def photos(tmp_path: Path) -> Data:
    """Write thirty images in three classes, each of its own size and brightness."""
    for index in range(30):
        folder = tmp_path / "photos" / "abc"[index % 3]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.roll(scene(20 + index, 30), index, axis=1)
        (folder / f"{index:02d}.png").write_bytes(encode(pixels, "PNG"))
    return open_data(tmp_path / "photos")


def loader(data: Data, **options: object) -> Loader:
    split = next(iter(data.splits.values()))
    return Loader(SplitDataset(split=split, transform=TRAIN, seed=7), **{"batch_size": 8, **options})


def take(batches: Loader, count: int) -> list[Batch]:
    return list(itertools.islice(batches, count))


def assert_same(one: Batch, other: Batch) -> None:
    for name in ("images", "labels", "indices", "epochs"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


@given(images=st.integers(1, 50), batch=st.integers(1, 20), seed=st.integers(0, 5))
def test_every_epoch_has_every_image_once(images: int, batch: int, seed: int):
    sampler = EpochSampler(images, seed)
    samples = [sampler(sample) for sample in range(3 * images)]
    for epoch in range(3):
        assert sorted(index for e, index in samples if e == epoch) == list(range(images))
    steps = [pair for step in range(3 * images // batch + 1) for pair in sampler.batch_indices(step, batch)]
    assert steps[: 3 * images] == samples


def test_each_epoch_and_seed_has_its_own_order():
    orders = [
        tuple(EpochSampler(100, seed)(100 * epoch + position)[1] for position in range(100))
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    assert len(set(orders)) == 4


def test_a_generator_depends_on_its_counters_alone():
    assert generator(1, 2, 3).random() == generator(1, 2, 3).random()
    draws = [generator(seed, epoch, index).random() for seed in range(9) for epoch in range(9) for index in range(9)]
    assert len(set(draws)) == 729
    assert np.mean(draws) == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize("workers", [2, 4])
def test_any_number_of_workers_gives_the_same_batches(photos: Data, workers: int):
    for one, other in zip(take(loader(photos), 9), take(loader(photos, workers=workers), 9), strict=True):
        assert_same(one, other)


def test_two_ranks_share_the_batch_of_one(photos: Data):
    single = take(loader(photos), 6)
    shares = [take(loader(photos, rank=rank, world_size=2), 6) for rank in (0, 1)]
    for batch, first, second in zip(single, *shares, strict=True):
        assert torch.equal(batch.images, torch.cat([first.images, second.images]))
        assert torch.equal(batch.indices, torch.cat([first.indices, second.indices]))


def test_starting_at_step_1234_gives_the_batch_that_iterating_reaches(photos: Data):
    reached = next(itertools.islice(loader(photos, batch_size=2), 1234, None))
    assert_same(next(iter(loader(photos, batch_size=2, start=1234))), reached)


def test_an_image_is_augmented_differently_in_another_epoch(photos: Data):
    split = photos.splits["all"]
    dataset = SplitDataset(split=split, transform=TRAIN, seed=7)
    assert torch.equal(dataset(0, 3), dataset(0, 3))
    assert not torch.equal(dataset(0, 3), dataset(1, 3))


def test_labels_belong_to_their_images(photos: Data):
    split = photos.splits["all"]
    for batch in take(loader(photos), 5):
        assert batch.images.dtype == torch.uint8
        for index, label in zip(batch.indices.tolist(), batch.labels.tolist(), strict=True):
            assert photos.classes[label] == Path(split.keys[index]).parent.name


def test_evaluation_has_every_image_once_and_in_order(photos: Data):
    dataset = SplitDataset(split=photos.splits["all"], transform=EVAL)
    batches = list(evaluation_batches(dataset, 8, workers=2))
    assert torch.cat([batch.indices for batch in batches]).tolist() == list(range(30))
    assert [len(batch.images) for batch in batches] == [8, 8, 8, 6]
    expected = EVAL(decode(photos.splits["all"].read(17)))
    assert torch.equal(torch.cat([batch.images for batch in batches])[17], expected)
    shares = [
        torch.cat([batch.indices for batch in evaluation_batches(dataset, 4, rank=rank, world_size=4)])
        for rank in range(4)
    ]
    assert sorted(torch.cat(shares).tolist()) == list(range(30))


def break_image(data: Data, index: int) -> str:
    split = data.splits["all"]
    path = Path(data.name) / split.keys[index]
    path = path if path.exists() else Path(split.keys[index])
    path.write_bytes(path.read_bytes()[:100])
    return split.keys[index]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_image_is_named_and_replaced(photos: Data, workers: int):
    break_image(photos, 4)
    batches = loader(photos, workers=workers, max_failed=0.1)
    counts = Counter(index for batch in take(batches, 15) for index in batch.indices.tolist())
    assert 4 not in counts
    assert counts.keys() == set(range(30)) - {4}
    assert list(batches.failures) == [4]
    assert "truncated" in batches.failures[4] or "damaged" in batches.failures[4]


def test_a_sample_is_the_first_images_of_training_without_broken_ones(photos: Data):
    order = [index for _, index in EpochSampler(30, seed=7).batch_indices(0, 30)]
    first = torch.cat([batch.images for batch in take(loader(photos, batch_size=10), 3)])
    broken = order.index(4)
    break_image(photos, 4)
    dataset = loader(photos).dataset
    assert torch.equal(first_images(dataset, 100), torch.cat([first[:broken], first[broken + 1 :]]))
    assert torch.equal(first_images(dataset, broken), first[:broken])


def test_too_many_broken_images_are_an_error(photos: Data):
    names = [break_image(photos, index) for index in (1, 5, 9, 20)]
    with pytest.raises(DataError, match=r"of 30 images could not be decoded so far, more than 10\.0%") as error:
        take(loader(photos, max_failed=0.1), 20)
    assert any(name in str(error.value) for name in names)


@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_but_broken_images_is_one_clear_error(tmp_path: Path, workers: int):
    for index in range(6):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / f"{index}.jpg").write_bytes(b"text")
    data = open_data(tmp_path)
    with pytest.raises(DataError) as error:
        take(loader(data, workers=workers), 1)
    assert "Traceback" not in str(error.value)
    assert "vitkit check" in str(error.value)
    with pytest.raises(DataError, match="of 6 images could not be decoded"):
        list(evaluation_batches(SplitDataset(split=data.splits["all"], transform=EVAL), 4, workers=workers))


def test_a_broken_image_is_logged_once(photos: Data, caplog: pytest.LogCaptureFixture):
    name = break_image(photos, 4)
    take(loader(photos), 15)
    assert caplog.text.count(name) == 1


def test_labels_are_matched_to_a_models_classes_by_name(photos: Data):
    matched, missing, extra = photos.with_classes(("zebra", "c", "a"))
    assert (missing, extra) == (("zebra",), ("b",))
    split = matched.splits["all"]
    for index in range(30):
        folder = Path(split.keys[index]).parent.name
        assert split.labels[index] == {"a": 2, "b": -1, "c": 1}[folder]


def test_a_models_classes_may_be_in_another_unicode_form(tmp_path: Path):
    """Weights from elsewhere, and of runs before names were normalised, keep their names as they are."""
    for name in ("Übung", "고양이"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(encode(scene(), "PNG"))
    names = tuple(unicodedata.normalize("NFD", name) for name in ("고양이", "개", "Übung"))
    matched, missing, extra = open_data(tmp_path).with_classes(names)
    assert (matched.classes, missing, extra) == (names, (names[1],), ())
    assert matched.splits["all"].labels.tolist() == [2, 0]
    both = (unicodedata.normalize("NFC", "고양이"), *names)
    assert open_data(tmp_path).with_classes(both)[0].splits["all"].labels.tolist() == [3, 0]  # the very same name first


def test_evaluation_skips_broken_images_and_lists_them(photos: Data):
    break_image(photos, 4)
    batches = list(evaluation_batches(SplitDataset(split=photos.splits["all"], transform=EVAL), 8))
    assert torch.cat([batch.indices for batch in batches]).tolist() == [index for index in range(30) if index != 4]
    assert [index for batch in batches for index, _ in batch.failures] == [4]
    broken = SplitDataset(split=photos.splits["all"].select([4]), transform=EVAL)
    assert next(evaluation_batches(broken, 8, max_failed=1)).images.shape == (0, 3, 16, 16)
    assert next(evaluation_batches(broken, 8, images=30)).images.shape == (0, 3, 16, 16)  # the last of 30 to compute
    with pytest.raises(TooManyFailures, match="1 of 1 images could not be decoded"):
        list(evaluation_batches(broken, 8))


@given(images=st.integers(1, 10_000), max_failed=st.floats(0, 1))
def test_the_share_allows_one_failure_but_never_all(images: int, max_failed: float):
    allowed = allowed_failures(images, max_failed)
    assert 0 <= allowed <= images
    assert allowed_failures(images, 0) == 0
    assert allowed_failures(images, 1) == images
    if 0 < max_failed < 1:
        assert allowed < images
        assert allowed >= min(1, images - 1)
        assert abs(allowed - max_failed * images) <= 1


def test_shares_that_floats_cannot_hold_are_counted_exactly():
    for percent in range(2, 100):  # 0.29 * 100 is 28.999999999999996
        assert allowed_failures(100, percent / 100) == percent
        assert advised_max_failed(percent / 100) >= percent / 100
    assert (advised_max_failed(0.05), advised_max_failed(1)) == (0.1, 1)


def test_batches_may_be_larger_than_the_dataset(tmp_path: Path):
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(encode(scene(), "PNG"))
    batch = next(iter(loader(open_data(tmp_path))))
    assert batch.images.shape == (8, 3, 16, 16)
    assert batch.epochs.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]


def test_a_batch_that_ranks_cannot_share_evenly_is_rejected(photos: Data):
    with pytest.raises(ConfigError, match="a batch of 8 cannot be divided evenly among 3 processes"):
        loader(photos, world_size=3)


def test_the_time_spent_waiting_for_data_is_measured(photos: Data):
    batches = loader(photos)
    take(batches, 3)
    assert batches.wait_seconds > 0
