"""Sparse labels equal dense tables and scipy's CSR matrices, whatever is done to them."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.data.sample_images import encode, scene
from vitkit.data import sparse_labels
from vitkit.data.batch import Batch
from vitkit.data.loader import Loader
from vitkit.data.partition import fingerprint, partition
from vitkit.data.sources.open import open_data
from vitkit.data.sparse_labels import SparseLabels
from vitkit.data.split_dataset import SplitDataset
from vitkit.data.transforms import TrainTransform


@st.composite
def tables(draw: st.DrawFn, images: int = 12, classes: int = 6) -> np.ndarray:
    shape = draw(st.integers(0, images)), draw(st.integers(1, classes))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return random.random(shape) < draw(st.sampled_from([0.0, 0.2, 0.6, 1.0]))


@given(tables())
def test_the_arrays_are_those_of_scipys_csr_matrix(table: np.ndarray):
    ours, theirs = SparseLabels.from_dense(table), scipy.sparse.csr_matrix(table)
    assert ours.offsets.tolist() == theirs.indptr.tolist()
    assert ours.numbers.tolist() == theirs.indices.tolist()
    transposed = theirs.T.tocsr()
    transposed.sort_indices()
    assert ours.by_class().offsets.tolist() == transposed.indptr.tolist()
    assert ours.by_class().numbers.tolist() == transposed.indices.tolist()
    assert ours.counts().tolist() == table.sum(axis=0).tolist()
    assert ours.has_any().tolist() == table.any(axis=1).tolist()
    assert [ours.images_of(k).tolist() for k in range(ours.classes)] == [
        np.flatnonzero(table[:, k]).tolist() for k in range(ours.classes)
    ]


@given(tables(), st.data())
def test_images_are_taken_as_from_a_dense_table(table: np.ndarray, data: st.DataObject):
    labels, count = SparseLabels.from_dense(table), len(table)
    indices = np.array(data.draw(st.lists(st.integers(-count, count - 1)) if count else st.just([])), dtype=np.int64)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=bool)
    for index in (indices, mask, slice(1, None, 2), slice(None, None, -1)):
        np.testing.assert_array_equal(labels[index].dense(), table[index])
    np.testing.assert_array_equal(labels.dense(indices), table[indices])
    assert [labels[row].tolist() for row in range(count)] == [np.flatnonzero(row).tolist() for row in table]
    assert pickle.loads(pickle.dumps(labels)) == labels


@given(tables(), st.data())
def test_the_rarest_label_is_the_first_of_the_fewest_images(table: np.ndarray, data: st.DataObject):
    expected = [min(np.flatnonzero(row), key=lambda k: (table[:, k].sum(), k)) if row.any() else -1 for row in table]
    assert SparseLabels.from_dense(table).rarest().tolist() == expected


@given(tables(), st.data())
def test_classes_are_renumbered_joined_and_removed_as_columns_are(table: np.ndarray, data: st.DataObject):
    width = data.draw(st.integers(1, 5))
    target = data.draw(st.lists(st.integers(-1, width - 1), min_size=table.shape[1], max_size=table.shape[1]))
    expected = np.zeros((len(table), width), bool)
    for old, new in enumerate(target):
        if new >= 0:
            expected[:, new] |= table[:, old]
    np.testing.assert_array_equal(
        SparseLabels.from_dense(table).renumber(np.array(target), width).dense(), expected, strict=True
    )


@given(tables(classes=2), st.data())
def test_pairs_of_images_differ_where_their_rows_do(table: np.ndarray, data: st.DataObject):
    rows = st.integers(0, len(table) - 1) if len(table) else st.nothing()
    pairs = np.array(data.draw(st.lists(st.tuples(rows, rows)) if len(table) else st.just([])), int).reshape(-1, 2)
    expected = (table[pairs[:, 0]] != table[pairs[:, 1]]).any(axis=1)
    assert SparseLabels.from_dense(table).differ(*pairs.T).tolist() == expected.tolist()


@given(st.lists(st.lists(st.integers(0, 4)), max_size=8))
def test_labels_that_are_named_twice_or_out_of_order_count_once(rows: list[list[int]]):
    labels = SparseLabels.from_rows(rows, 5)
    assert [labels[row].tolist() for row in range(len(rows))] == [sorted(set(row)) for row in rows]


@given(tables(images=40), st.integers(1, 7))
def test_blocks_make_no_difference(table: np.ndarray, block: int):
    whole = SparseLabels.from_dense(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_labels, "BLOCK", block)
        patch.setattr(sparse_labels, "DENSE_BLOCK", block)
        labels = SparseLabels.from_dense(table)
        assert labels == whole
        order = np.random.default_rng(0).permutation(len(table))
        np.testing.assert_array_equal(labels[order].dense(), table[order])
        joined = [part for _, part in labels.dense_blocks()]
        np.testing.assert_array_equal(np.concatenate(joined) if joined else table, table)
        assert labels.rarest().tolist() == whole.rarest().tolist()


def test_class_indices_are_labels_of_one_or_none():
    labels = SparseLabels.from_indices(np.array([2, -1, 0]), 3)
    assert labels.dense().tolist() == [[False, False, True], [False, False, False], [True, False, False]]


@pytest.mark.parametrize(
    ("offsets", "numbers"),
    [([0, 1], [3]), ([0, 1], [-1]), ([0, 2], [1]), ([1, 1], [1]), ([0, 2, 1, 2], [0, 1]), ([], [])],
)
def test_arrays_of_a_damaged_file_are_refused(offsets: list[int], numbers: list[int]):
    with pytest.raises(ValueError, match="labels"):
        SparseLabels(np.array(offsets, int), np.array(numbers, int), 3)


@given(tables().filter(len))
def test_the_targets_of_a_batch_are_its_dense_rows(table: np.ndarray):
    batch = Batch(
        images=torch.zeros(len(table), 1),
        labels=SparseLabels.from_dense(table),
        indices=torch.arange(len(table)),
        epochs=torch.zeros(len(table)),
    )
    arrived = pickle.loads(pickle.dumps(batch))  # as a data worker sends it
    assert arrived.labels == batch.labels
    torch.testing.assert_close(arrived.to("cpu").labels, torch.from_numpy(table).float())


def test_a_manifest_of_many_classes_is_opened_split_subset_and_loaded_without_a_dense_table(tmp_path: Path):
    """A table of 8,000 images and 8,000 classes would have 64 MB of booleans; these labels have 0.2 MB."""
    (tmp_path / "a.png").write_bytes(encode(scene(8, 8), "PNG"))
    numbers = np.random.default_rng(0).integers(0, 8000, (8000, 5))
    numbers[:, 0] = np.arange(8000)  # no class is without an image
    rows = "".join(f"a.png,{'|'.join(map(str, row))}\n" for row in numbers.tolist())
    (tmp_path / "list.csv").write_text("path,labels\n" + rows)
    tracemalloc.start()
    try:
        data = open_data(tmp_path / "list.csv")
        part = partition(data, dev=0.1, subset=0.5)
        fingerprint(data, "all")
        loader = Loader(SplitDataset(split=part.train, transform=TrainTransform(image=(8, 8))), batch_size=16)
        batch = next(iter(loader))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16e6
    expected = np.zeros((16, 8000), bool)
    for row, key in enumerate(part.train.rows[batch.indices.numpy()]):
        expected[row, [data.classes.index(str(number)) for number in numbers[key]]] = True
    np.testing.assert_array_equal(batch.targets("cpu").numpy(), expected)
