from __future__ import annotations

import numpy as np
import pytest

from vitkit.data.sources.dataset import Data, DataError, PackedStrings, Split
from vitkit.data.sources.splits import scoring_split, split_in_file_name, training_split, validation_split


def data_of(*splits: str, unlabelled: tuple[str, ...] = ()) -> Data:
    made = {
        name: Split(PackedStrings(["1"]), np.array([-1 if name in unlabelled else 0]), None, np.arange(1))
        for name in splits
    }
    return Data("photos", "class folders", ("a",), made, ())


@pytest.mark.parametrize(
    ("splits", "training", "validation", "scoring"),
    [
        (("train", "val", "test"), "train", "val", "test"),
        (("train", "trainval", "val", "test"), "train", "val", "test"),
        (("trainval", "test"), "trainval", None, "test"),
        (("train", "trainval", "val"), "train", "val", "val"),
        (("train", "val"), "train", "val", "val"),
        (("all",), "all", None, "all"),
    ],
)
def test_training_uses_train_validation_val_and_scoring_test(
    splits, training: str, validation: str | None, scoring: str
):
    data = data_of(*splits)
    assert (training_split(data), validation_split(data), scoring_split(data)) == (training, validation, scoring)


def test_val_does_not_score_a_model_trained_on_trainval():
    with pytest.raises(DataError, match="no split to score on"):
        scoring_split(data_of("trainval", "val"))


def test_a_test_split_without_labels_does_not_score():
    assert scoring_split(data_of("train", "val", "test", unlabelled=("test",))) == "val"


def test_a_missing_split_is_an_error_that_lists_the_splits():
    with pytest.raises(DataError, match=r"photos has no split to train on(.|\n)*test: 1 images"):
        training_split(data_of("test"))
    with pytest.raises(DataError, match="no split to score on"):
        scoring_split(data_of("train"))


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-000000", "train"),
        ("imagenet-Val-12", "val"),
        ("pets_test", "test"),
        ("train-test-1", None),
        ("constrained-1", None),
        ("000000", None),
    ],
)
def test_a_split_is_recognised_in_a_file_name(name: str, split: str | None):
    assert split_in_file_name(name) == split
