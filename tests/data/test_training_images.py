"""Training on train and val together, and on a random draw: which images, and that the run records and repeats it."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_run import TINY, fit, write_photos
from vitkit.config.resolve import resolve
from vitkit.data.fingerprint import identity_of
from vitkit.data.partition import partition
from vitkit.data.sources.dataset import Data, DataError
from vitkit.data.sources.open import open_data
from vitkit.data.training_images import draw_images, join_validation
from vitkit.python_api import Run
from vitkit.run_folder import RunFolder

FASHION = open_data("fashion")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder with 18 images to train on, 9 of val and 12 of test."""
    for split, count in (("train", 6), ("val", 3), ("test", 4)):
        write_photos(tmp_path / "photos" / split, count)
    return tmp_path / "photos"


def with_val(train: int, val: int) -> Data:
    split = FASHION.splits["train"]
    splits = {"train": split.select(np.arange(train)), "val": split.select(np.arange(train, train + val))}
    return replace(FASHION, splits={**splits, "test": FASHION.splits["test"]})


@given(train=st.integers(1, 40), val=st.integers(1, 40))
def test_joined_images_are_those_of_both_splits_in_order(train: int, val: int):
    data = with_val(train, val)
    joined = join_validation(data)
    assert [*joined.splits] == ["train", "test"]
    split, every = joined.splits["train"], FASHION.splits["train"]
    assert [*split.keys] == [*every.keys[: train + val]]
    assert np.array_equal(split.labels, every.labels[: train + val])
    for index in (0, train - 1, train, train + val - 1):
        assert np.array_equal(split.read(index), every.read(index))


def test_joined_images_can_be_sent_to_data_workers_and_identified(photos: Path):
    data = open_data(photos)
    joined = join_validation(data).splits["train"]
    sent = pickle.loads(pickle.dumps(joined))
    for index, (name, row) in {0: ("train", 0), len(data.splits["train"]): ("val", 0)}.items():
        assert sent.read(index) == data.splits[name].read(row)
        assert identity_of(sent, index) == identity_of(data.splits[name], row) is not None
    arrays = join_validation(with_val(3, 3)).splits["train"]
    assert identity_of(arrays, 0) == identity_of(FASHION.splits["train"], 0)


def test_val_is_not_joined_where_it_is_scored(photos: Path):
    data = open_data(photos)
    without = replace(data, splits={name: data.splits[name] for name in ("train", "val")})
    with pytest.raises(DataError, match="has no test split with labels, so val is scored"):
        join_validation(without)
    trained = replace(data, splits={name: data.splits[name] for name in ("train", "test")})
    assert join_validation(trained) is trained


@given(count=st.integers(1, 80), more=st.integers(0, 80), seed=st.integers(0, 2**40))
def test_draws_are_nested_seeded_and_without_repetition(count: int, more: int, seed: int):
    split = FASHION.splits["train"].select(np.arange(100))
    small, large = (list(draw_images(split, size, seed).keys) for size in (count, count + more))
    assert large[:count] == small
    assert len({*large}) == len(large) == min(count + more, 100)


def test_a_draw_changes_what_is_trained_on_and_nothing_else():
    whole, drawn = partition(FASHION), partition(FASHION, subset_images=100, split_seed=3)
    assert len(drawn.train) == 100
    assert {*drawn.train.keys} < {*whole.train.keys}
    assert [*drawn.test.keys] == [*whole.test.keys]
    assert "100 of 6,000 used for training (subset_images = 100)" in drawn.description
    assert {*partition(FASHION, subset_images=10**6).train.keys} == {*whole.train.keys}


def test_a_run_on_train_and_val_records_and_scores_it(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fit(photos, *TINY, "--out", tmp_path / "run", "--set", "train_on_val=true", "subset_images=20")
    assert "27 train, 12 test, 20 of 27 used for training" in capsys.readouterr().out
    folder = RunFolder(tmp_path / "run")
    assert (folder.config().train_on_val, folder.config().subset_images) == (True, 20)
    assert sum(folder.record()["trained_counts"].values()) == 20


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "train_on_val=true"], "train_on_val would change nothing here: it is for data with a val split"),
        (["--set", "subset_images=0"], "subset_images = 0"),
    ],
)
def test_a_setting_without_effect_is_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit, match="2"):
        fit(write_photos(tmp_path / "photos", 6), *TINY, *words)
    assert message in capsys.readouterr().err


def test_scores_on_images_of_train_and_val_say_that_they_were_trained_on(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    fit(photos, *TINY, "--out", tmp_path / "run", "--set", "train_on_val=true")
    for split, warned in (("train", True), ("val", True), ("test", False)):
        caplog.clear()
        Run(tmp_path / "run", device="cpu").evaluate(photos, split=split, workers=0)
        assert ("was trained on these images" in caplog.text) == warned


def test_the_recipe_counts_the_images_of_val_that_are_trained_on(photos: Path):
    _, _, reason = resolve({"data": str(photos), "weights": "none", "train_on_val": True})
    assert "27 images" in reason
