"""Partitions: every image has one purpose, and the images that a run held out can be recovered."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitkit.config.schema import Fit
from vitkit.data.partition import Partition, fingerprint, held_out_test, is_held_out, partition, stratified
from vitkit.data.sources.dataset import Data, DataError, PackedStrings, Split
from vitkit.data.sparse_labels import SparseLabels

CLASSES = ("cat", "dog", "owl")


class UnreadableStore:
    """A store that fails the test when an image is read."""

    def read(self, row: int) -> bytes:
        raise AssertionError("an image was read")


def split(name: str, labels: Any) -> Split:
    array = np.asarray(labels)
    labels = SparseLabels.from_dense(array) if array.ndim == 2 else array.astype(np.int64)
    return Split(
        PackedStrings(f"{name}/{row}.png" for row in range(len(labels))),
        labels,
        UnreadableStore(),
        np.arange(len(labels)),
    )


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


def keys_by_purpose(partitioned: Partition) -> list[set[str]]:
    return [keys(partitioned.train), keys(partitioned.validation), keys(partitioned.test)]


def names(prefix: str, rows: int) -> set[str]:
    return {f"{prefix}/{row}.png" for row in range(rows)}


def test_train_and_test_are_used_as_they_are():
    result = partition(data(train=each(10), test=each(4)))
    assert keys_by_purpose(result) == [names("train", 30), set(), names("test", 12)]
    assert result.held_out is None
    assert result.description == ("30 train", "12 test")


def test_val_is_the_validation_split():
    result = partition(data(train=each(10), val=each(2), test=each(4)), dev=0.5, patience=3)
    assert keys_by_purpose(result) == [names("train", 30), names("val", 6), names("test", 12)]
    assert result.description == ("30 train", "6 val", "12 test")


def test_all_of_trainval_is_trained_on():
    result = partition(data(trainval=each(10), val=each(2), test=each(4)))
    assert keys_by_purpose(result) == [names("trainval", 30), set(), names("test", 12)]
    assert result.description == ("30 trainval", "12 test")


def test_val_is_not_the_test_split_of_trainval_which_includes_it():
    result = partition(data(trainval=each(10), val=each(2)))
    assert keys(result.test) < names("trainval", 30)
    assert not keys(result.train) & keys(result.test)
    assert result.held_out is not None


def test_val_is_the_test_split_where_there_is_no_test():
    result = partition(data(train=each(10), val=each(2)))
    assert keys(result.test) == names("val", 6)
    assert keys(result.train) == names("train", 30)
    assert result.description == ("30 train", "6 val")


@pytest.mark.parametrize("settings", [{"dev": 0.1}, {"dev": 0.1, "patience": 2}])
def test_validation_images_are_not_test_images(settings: dict[str, Any]):
    result = partition(data(train=each(10), val=each(2)), **settings)
    train, validation, test = keys_by_purpose(result)
    assert test == names("val", 6)
    assert len(validation) == 3
    assert train | validation == names("train", 30)
    assert not train & validation


def test_early_stopping_does_not_use_the_test_images():
    assert partition(data(train=each(10), val=each(2)), patience=2).validation is None


def test_a_test_split_without_labels_is_not_used():
    result = partition(data(train=each(10), test=[-1] * 5))
    assert result.held_out is not None
    assert result.held_out["source"] == "train"
    assert keys(result.train) | keys(result.test) == names("train", 30)


def test_a_val_split_without_labels_is_not_used():
    assert partition(data(train=each(10), val=[-1] * 5, test=each(4))).validation is None


def test_a_fifth_of_each_class_is_held_out_where_the_data_have_no_splits():
    rows = each(50) + [0] * 50  # 100 cats, 50 dogs, 50 owls
    result = partition(data(all=rows))
    assert result.test is not None
    assert result.train.per_class(3).tolist() == [80, 40, 40]
    assert result.test.per_class(3).tolist() == [20, 10, 10]
    assert keys(result.train) | keys(result.test) == names("all", 200)
    assert result.description[0] == "160 train"
    assert result.description[1] == "40 test, held out (20% of each class)"


def test_the_held_out_images_depend_on_split_seed_alone():
    runs = (Fit(), Fit(seed=1), Fit(split_seed=1))
    chosen = [keys(partition(data(all=each(20)), **run.partition).test) for run in runs]
    assert chosen[0] == chosen[1] != chosen[2]
    assert len(chosen[2]) == 12


def test_validation_images_are_held_out_from_the_training_images():
    result = partition(data(all=each(20)), dev=0.25)
    train, validation, test = keys_by_purpose(result)
    assert (len(train), len(validation), len(test)) == (36, 12, 12)
    assert train | validation | test == names("all", 60)
    assert result.description[1] == "12 of them held out for validation"
    assert test == keys(partition(data(all=each(20))).test)  # the test images do not depend on dev


def test_images_without_a_label_are_not_used():
    rows = [*each(10), -1, -1]
    result = partition(data(train=rows, test=[*each(4), -1]))
    assert keys(result.train) == names("train", 30)
    assert keys(result.test) == names("test", 12)
    result = partition(data(all=rows))
    assert keys(result.train) | keys(result.test) == names("all", 30)


def test_masked_patch_prediction_uses_every_image_of_the_training_split():
    source = data(train=[*each(2), -1], val=each(2), test=each(2))
    assert keys_by_purpose(partition(source, objective="masked-patch")) == [names("train", 7), set(), set()]
    flat = data(classes=(), all=[-1] * 9)
    assert keys_by_purpose(partition(flat, objective="masked-patch", dev=0.5)) == [names("all", 9), set(), set()]


def test_multi_label_images_are_stratified_by_their_rarest_label():
    labels = np.zeros((40, 3), bool)
    labels[:, 0] = True
    labels[:10, 2] = True
    result = partition(data(multilabel=True, all=labels))
    assert result.test is not None
    assert result.test.per_class(3).tolist() == [8, 0, 2]
    assert len(result.train) == 32


def test_a_single_multi_label_class_can_be_learned():
    result = partition(data(classes=["rain"], multilabel=True, train=[[1], [0], [1]], test=[[1], [0]]))
    assert len(result.train) == 3


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (data(classes=(), all=[-1] * 10), "photos has no labels to train on"),
        (data(train=[-1] * 10, test=each(3)), "photos has no labels to train on"),
        (data(classes=["cat"], all=[0] * 10), "training images of one class only, cat: there is nothing to tell apart"),
        (data(train=[1] * 10, test=each(3)), "training images of one class only, dog"),
        (data(all=[0, 1, 2]), "3 images, no two of a class, are too few to hold some out for testing"),
        (data(all=[]), "photos has no labels to train on"),
        (data(test=each(3)), "photos has no split to train on"),
    ],
)
def test_data_without_anything_to_learn_are_an_error_that_says_why(source: Data, message: str):
    with pytest.raises(DataError) as error:
        partition(source)
    assert message in str(error.value)


def test_too_few_images_for_validation_are_an_error():
    with pytest.raises(DataError, match="too few to hold some out for validation"):
        partition(data(train=[0, 1, 2], test=each(3)), dev=0.1)


def test_two_images_of_a_class_are_enough():
    result = partition(data(all=each(2)))
    assert result.test is not None
    assert result.train.per_class(3).tolist() == result.test.per_class(3).tolist() == [1, 1, 1]


@given(
    counts=st.lists(st.integers(0, 12), min_size=3, max_size=3),
    unlabelled=st.integers(0, 5),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**40),
    dev=st.sampled_from([0, 0.3]),
    order=st.randoms(),
)
def test_held_out_images_can_be_recovered_and_are_not_trained_on(
    counts: list[int], unlabelled: int, share: float, seed: int, dev: float, order: Any
):
    rows = [row for label, count in enumerate(counts) for row in [label] * count] + [-1] * unlabelled
    order.shuffle(rows)
    source = data(all=rows)
    try:
        result = partition(source, test=share, split_seed=seed, dev=dev)
    except DataError:
        return
    assert result.held_out is not None
    recovered = held_out_test(source, result.held_out)
    assert recovered is not None
    assert list(recovered.splits) == ["test"]
    train, validation, test = keys_by_purpose(result)
    assert list(recovered.splits["test"].keys) == list(result.test.keys)  # type: ignore[union-attr]
    assert recovered.splits["test"].labels.tolist() == result.test.labels.tolist()  # type: ignore[union-attr]
    assert not train & test
    assert not validation & (train | test)
    assert train | validation | test == {
        key for key, row in zip(source.splits["all"].keys, rows, strict=True) if row >= 0
    }


def test_other_data_have_nothing_held_out():
    result = partition(data(all=each(10)))
    assert result.held_out is not None
    assert held_out_test(data(all=[*each(10), 0]), result.held_out) is None
    assert held_out_test(data(train=each(10)), result.held_out) is None


def test_a_fingerprint_depends_on_labels_names_order_and_classes():
    source = data(all=each(10))
    images = source.splits["all"]
    others = {
        "labels": replace(source, splits={"all": replace(images, labels=images.labels[::-1].copy())}),
        "names": replace(source, splits={"all": split("more", each(10))}),
        "order": replace(source, splits={"all": images.select(np.arange(30)[::-1])}),
        "fewer": replace(source, splits={"all": images.select(np.arange(29))}),
        "classes": replace(source, classes=("cat", "dog", "fox")),
    }
    hashes = {name: fingerprint(other, "all") for name, other in others.items()}
    assert len({fingerprint(source, "all"), *hashes.values()}) == 6
    assert fingerprint(source, "all") == fingerprint(data(all=each(10), test=each(2)), "all")


@given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=6), share=st.floats(0.05, 0.5), seed=st.integers(0, 3))
def test_a_stratified_split_takes_each_class_in_proportion(counts: list[int], share: float, seed: int):
    labels = np.repeat(np.arange(len(counts)), counts)
    rest, held_out = stratified(labels, share, seed)
    assert sorted([*rest, *held_out]) == list(range(len(labels)))
    for label, count in enumerate(counts):
        taken = (labels[held_out] == label).sum()
        assert abs(taken - share * count) <= 1
        assert 1 <= taken <= count - 1 or count == 1
    assert np.array_equal(held_out, stratified(labels, share, seed)[1])


def test_a_stratified_split_of_multi_labels_keeps_rare_ones_on_both_sides():
    labels = np.zeros((100, 3), bool)
    labels[:, 0] = True
    labels[:10, 1] = True
    labels[:4, 2] = True
    rest, held_out = stratified(SparseLabels.from_dense(labels), 0.25, 0)
    assert labels[held_out].sum(axis=0).tolist() == [len(held_out), labels[held_out, 1].sum(), 1]
    assert labels[rest, 2].sum() == 3


def dense_fingerprint(source: Data, name: str) -> str:
    """Return the fingerprint of multi-label data as earlier versions wrote it, over the bytes of the dense table."""
    images = source.splits[name]
    texts = [*source.classes, "\0", *images.keys]
    table = images.labels.dense().tobytes()  # type: ignore[union-attr]
    return hashlib.sha256(b"".join(text.encode() + b"\0" for text in texts) + table).hexdigest()


def test_images_that_an_older_multi_label_run_held_out_are_recovered():
    source = data(multilabel=True, all=np.random.default_rng(0).random((40, 3)) < 0.5)
    result = partition(source)
    assert result.held_out is not None
    old = {**result.held_out, "fingerprint": dense_fingerprint(source, "all")}
    recovered = held_out_test(source, old)
    assert recovered is not None
    assert set(recovered.splits["test"].keys) == keys(result.test)
    assert is_held_out(old, source, result.held_out)
    assert not is_held_out({**old, "seed": 1}, source, result.held_out)
    other = data(multilabel=True, all=np.random.default_rng(1).random((40, 3)) < 0.5)
    assert held_out_test(other, old) is None
    assert not is_held_out(old, other, result.held_out)
    assert held_out_test(other, result.held_out) is None
