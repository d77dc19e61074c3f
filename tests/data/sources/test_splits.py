from __future__ import annotations

import numpy as np
import pytest

from vitkit.data.sources.base import Data, DataError, Names, Split
from vitkit.data.sources.splits import choosing_split, fitting_split, scoring_split, split_within


def data_of(*splits: str, unlabelled: tuple[str, ...] = ()) -> Data:
    made = {
        name: Split(Names(["1"]), np.array([-1 if name in unlabelled else 0]), None, np.arange(1)) for name in splits
    }
    return Data("photos", "class folders", ("a",), made, ())


@pytest.mark.parametrize(
    ("splits", "fitting", "choosing", "scoring"),
    [
        (("train", "val", "test"), "train", "val", "test"),
        (("train", "trainval", "val", "test"), "train", "val", "test"),
        (("trainval", "test"), "trainval", None, "test"),
        (("train", "trainval", "val"), "train", "val", "val"),
        (("train", "val"), "train", "val", "val"),
        (("all",), "all", None, "all"),
    ],
)
def test_fitting_uses_train_choosing_val_and_scoring_test(splits, fitting: str, choosing: str | None, scoring: str):
    data = data_of(*splits)
    assert (fitting_split(data), choosing_split(data), scoring_split(data)) == (fitting, choosing, scoring)


def test_val_does_not_score_what_was_fitted_on_trainval_which_holds_it():
    with pytest.raises(DataError, match="no split to score on"):
        scoring_split(data_of("trainval", "val"))


def test_a_test_split_without_labels_does_not_score():
    assert scoring_split(data_of("train", "val", "test", unlabelled=("test",))) == "val"


def test_a_lacking_split_is_told_with_what_there_is():
    with pytest.raises(DataError, match=r"photos has no split to fit on(.|\n)*test: 1 pictures"):
        fitting_split(data_of("test"))
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
def test_a_split_is_found_within_a_file_name(name: str, split: str | None):
    assert split_within(name) == split
