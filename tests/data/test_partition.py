"""Which pictures fit, choose and score: each has one part only, and what a run held back can be found again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitkit.config.schema import Fit
from vitkit.data.partition import Partition, fingerprint, held_out_test, partition
from vitkit.data.sources.base import Data, DataError, Names, Split

CLASSES = ("cat", "dog", "owl")


class Nothing:
    """Dividing looks at no picture."""

    def read(self, row: int) -> bytes:
        raise AssertionError("a picture was read")


def split(name: str, labels: Any) -> Split:
    array = np.asarray(labels)
    labels = array.astype(bool if array.ndim == 2 else np.int64)
    return Split(Names(f"{name}/{row}.png" for row in range(len(labels))), labels, Nothing(), np.arange(len(labels)))


def data(*, classes: Sequence[str] = CLASSES, multilabel: bool = False, **labels: Any) -> Data:
    return Data(
        name="photos",
        kind="class folders",
        classes=tuple(classes),
        notes=(),
        multilabel=multilabel,
        splits={name: split(name, rows) for name, rows in labels.items()},
    )


def each(count: int, classes: int = 3) -> list[int]:
    return [*range(classes)] * count


def keys(chosen: Split | None) -> set[str]:
    return set() if chosen is None else set(chosen.keys)


def parts(found: Partition) -> list[set[str]]:
    return [keys(found.train), keys(found.validation), keys(found.test)]


def names(prefix: str, rows: int) -> set[str]:
    return {f"{prefix}/{row}.png" for row in range(rows)}


def test_train_and_test_are_used_as_they_are():
    found = partition(data(train=each(10), test=each(4)))
    assert parts(found) == [names("train", 30), set(), names("test", 12)]
    assert found.held_out is None
    assert found.description == ("30 train", "12 test")


def test_val_is_for_choosing():
    found = partition(data(train=each(10), val=each(2), test=each(4)), dev=0.5, patience=3)
    assert parts(found) == [names("train", 30), names("val", 6), names("test", 12)]
    assert found.description == ("30 train", "6 val", "12 test")


def test_trainval_is_fitted_whole():
    found = partition(data(trainval=each(10), val=each(2), test=each(4)))
    assert parts(found) == [names("trainval", 30), set(), names("test", 12)]
    assert found.description == ("30 trainval", "12 test")


def test_trainval_holds_val_which_so_cannot_score():
    found = partition(data(trainval=each(10), val=each(2)))
    assert keys(found.test) < names("trainval", 30)
    assert not keys(found.train) & keys(found.test)
    assert found.held_out is not None


def test_val_scores_where_there_is_no_test():
    found = partition(data(train=each(10), val=each(2)))
    assert keys(found.test) == names("val", 6)
    assert keys(found.train) == names("train", 30)
    assert found.description == ("30 train", "6 val")


@pytest.mark.parametrize("settings", [{"dev": 0.1}, {"dev": 0.1, "patience": 2}])
def test_nothing_is_chosen_by_the_pictures_that_score(settings: dict[str, Any]):
    found = partition(data(train=each(10), val=each(2)), **settings)
    fit, dev, test = parts(found)
    assert test == names("val", 6)
    assert len(dev) == 3
    assert fit | dev == names("train", 30)
    assert not fit & dev


def test_stopping_early_needs_pictures_of_its_own():
    assert partition(data(train=each(10), val=each(2)), patience=2).validation is None


def test_a_test_split_without_labels_scores_nothing():
    found = partition(data(train=each(10), test=[-1] * 5))
    assert found.held_out is not None
    assert found.held_out["source"] == "train"
    assert keys(found.train) | keys(found.test) == names("train", 30)


def test_a_val_split_without_labels_chooses_nothing():
    assert partition(data(train=each(10), val=[-1] * 5, test=each(4))).validation is None


def test_a_fifth_of_each_class_is_set_aside_where_the_data_have_no_splits():
    rows = each(50) + [0] * 50  # 100 cats, 50 dogs, 50 owls
    found = partition(data(all=rows))
    assert found.test is not None
    assert found.train.per_class(3).tolist() == [80, 40, 40]
    assert found.test.per_class(3).tolist() == [20, 10, 10]
    assert keys(found.train) | keys(found.test) == names("all", 200)
    assert "160 to fit" in found.description[0]
    assert "40 to score, set aside from all (20% of each class)" in found.description[1]


def test_who_is_set_aside_has_a_seed_of_its_own_and_is_the_same_for_every_run():
    runs = (Fit(), Fit(seed=1), Fit(split_seed=1))
    chosen = [keys(partition(data(all=each(20)), run).test) for run in runs]
    assert chosen[0] == chosen[1] != chosen[2]
    assert len(chosen[2]) == 12


def test_dev_pictures_come_out_of_the_training_part():
    found = partition(data(all=each(20)), dev=0.25)
    fit, dev, test = parts(found)
    assert (len(fit), len(dev), len(test)) == (36, 12, 12)
    assert fit | dev | test == names("all", 60)
    assert "12 of them set aside for choosing" in found.description[1]
    assert test == keys(partition(data(all=each(20))).test)  # who is scored does not depend on what is tried


def test_pictures_without_a_label_are_left_out():
    rows = [*each(10), -1, -1]
    found = partition(data(train=rows, test=[*each(4), -1]))
    assert keys(found.train) == names("train", 30)
    assert keys(found.test) == names("test", 12)
    found = partition(data(all=rows))
    assert keys(found.train) | keys(found.test) == names("all", 30)


def test_masked_patch_prediction_uses_every_picture_of_the_training_split():
    pictures = data(train=[*each(2), -1], val=each(2), test=each(2))
    assert parts(partition(pictures, objective="masked-patch")) == [names("train", 7), set(), set()]
    flat = data(classes=(), all=[-1] * 9)
    assert parts(partition(flat, objective="masked-patch", dev=0.5)) == [names("all", 9), set(), set()]


def test_multi_label_pictures_are_divided_by_their_rarest_label():
    labels = np.zeros((40, 3), bool)
    labels[:, 0] = True
    labels[:10, 2] = True
    found = partition(data(multilabel=True, all=labels))
    assert found.test is not None
    assert found.test.per_class(3).tolist() == [8, 0, 2]
    assert len(found.train) == 32


def test_one_tag_that_is_there_or_not_can_be_learned():
    found = partition(data(classes=["rain"], multilabel=True, train=[[1], [0], [1]], test=[[1], [0]]))
    assert len(found.train) == 3


@pytest.mark.parametrize(
    ("pictures", "message"),
    [
        (data(classes=(), all=[-1] * 10), "photos has no labels to fit"),
        (data(train=[-1] * 10, test=each(3)), "photos has no labels to fit"),
        (data(classes=["cat"], all=[0] * 10), "pictures of one class only to fit, cat: there is nothing to tell apart"),
        (data(train=[1] * 10, test=each(3)), "pictures of one class only to fit, dog"),
        (data(all=[0, 1, 2]), "3 pictures, no two of a class, are too few to set some aside for scoring"),
        (data(all=[]), "photos has no labels to fit"),
        (data(test=each(3)), "photos has no split to fit on"),
    ],
)
def test_data_that_cannot_be_learned_from_are_an_error_that_says_why(pictures: Data, message: str):
    with pytest.raises(DataError) as told:
        partition(pictures)
    assert message in str(told.value)


def test_too_few_to_choose_by_is_an_error():
    with pytest.raises(DataError, match="too few to set some aside for choosing"):
        partition(data(train=[0, 1, 2], test=each(3)), dev=0.1)


def test_two_pictures_of_a_class_are_enough():
    found = partition(data(all=each(2)))
    assert found.test is not None
    assert found.train.per_class(3).tolist() == found.test.per_class(3).tolist() == [1, 1, 1]


@given(
    counts=st.lists(st.integers(0, 12), min_size=3, max_size=3),
    unlabelled=st.integers(0, 5),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**40),
    dev=st.sampled_from([0, 0.3]),
    order=st.randoms(),
)
def test_what_was_held_out_is_found_again_and_training_has_not_seen_it(
    counts: list[int], unlabelled: int, share: float, seed: int, dev: float, order: Any
):
    rows = [row for label, count in enumerate(counts) for row in [label] * count] + [-1] * unlabelled
    order.shuffle(rows)
    pictures = data(all=rows)
    try:
        found = partition(pictures, test=share, split_seed=seed, dev=dev)
    except DataError:
        return
    assert found.held_out is not None
    again = held_out_test(pictures, found.held_out)
    assert again is not None
    assert list(again.splits) == ["test"]
    fit, chosen, test = parts(found)
    assert list(again.splits["test"].keys) == list(found.test.keys)  # type: ignore[union-attr]
    assert again.splits["test"].labels.tolist() == found.test.labels.tolist()  # type: ignore[union-attr]
    assert not fit & test
    assert not chosen & (fit | test)
    assert fit | chosen | test == {key for key, row in zip(pictures.splits["all"].keys, rows, strict=True) if row >= 0}


def test_other_data_have_nothing_held_out():
    found = partition(data(all=each(10)))
    assert found.held_out is not None
    assert held_out_test(data(all=[*each(10), 0]), found.held_out) is None
    assert held_out_test(data(train=each(10)), found.held_out) is None


def test_a_fingerprint_knows_labels_names_order_and_classes():
    pictures = data(all=each(10))
    whole = pictures.splits["all"]
    others = {
        "labels": replace(pictures, splits={"all": replace(whole, labels=whole.labels[::-1].copy())}),
        "names": replace(pictures, splits={"all": split("more", each(10))}),
        "order": replace(pictures, splits={"all": whole.select(np.arange(30)[::-1])}),
        "fewer": replace(pictures, splits={"all": whole.select(np.arange(29))}),
        "classes": replace(pictures, classes=("cat", "dog", "fox")),
    }
    marks = {name: fingerprint(other, "all") for name, other in others.items()}
    assert len({fingerprint(pictures, "all"), *marks.values()}) == 6
    assert fingerprint(pictures, "all") == fingerprint(data(all=each(10), test=each(2)), "all")
