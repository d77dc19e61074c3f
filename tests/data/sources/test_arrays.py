from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.open import open_data

GREY = np.arange(4 * 3 * 2, dtype=np.uint8).reshape(4, 3, 2)


def saved(path: Path, save=np.savez, **arrays: object) -> Path:
    save(path, **arrays)
    return path


def error_of(path: Path) -> str:
    with pytest.raises(DataError) as error:
        open_data(path)
    return str(error.value)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_images_equal_what_numpy_loads(save, dtype: type, order: str, tmp_path: Path):
    images = np.asarray(np.random.default_rng(0).uniform(0, 200, (5, 4, 3, 2)), dtype=dtype, order=order)
    data = open_data(saved(tmp_path / "a.npz", save, images=images, labels=[0, 1, 2, 1, 0]))
    part = data.splits["all"]
    with np.load(tmp_path / "a.npz") as theirs:
        for index in range(5):
            np.testing.assert_array_equal(part.read(index), theirs["images"][index])
    assert part.read(0).dtype == dtype
    assert (data.kind, data.classes, list(part.keys)[:2]) == ("arrays", ("0", "1", "2"), ["images[0]", "images[1]"])


def test_uncompressed_arrays_are_memory_mapped_and_pickles_hold_no_array(tmp_path: Path):
    images = np.zeros((100, 32, 32, 3), np.uint8)
    for save, mapped in ((np.savez, True), (np.savez_compressed, False)):
        part = open_data(saved(tmp_path / "a.npz", save, x=images, y=np.zeros(100, int))).splits["all"]
        assert part.store.open().flags.writeable is not mapped  # a mapping is read-only
        assert len(pickle.dumps(part)) < 10_000
        assert pickle.loads(pickle.dumps(part)).store.read(3).shape == (32, 32, 3)


@pytest.mark.parametrize(
    ("image", "label"), [("x_{}", "y_{}"), ("{}_images", "{}_labels"), ("{}_data", "{}_targets"), ("X_{}", "Y_{}")]
)
def test_splits_are_pairs_of_arrays(image: str, label: str, tmp_path: Path):
    arrays = {
        image.format("train"): GREY,
        label.format("train"): np.array([[1], [0], [1], [2]]),  # as MedMNIST
        image.format("val"): GREY[:2],
        label.format("val"): np.array([[2], [2]], dtype=np.uint8),
    }
    data = open_data(saved(tmp_path / "a.npz", **arrays))
    assert {name: part.labels.tolist() for name, part in data.splits.items()} == {"train": [1, 0, 1, 2], "val": [2, 2]}
    np.testing.assert_array_equal(data.splits["val"].read(1), GREY[1][..., None])


def test_labels_follow_class_names_not_class_numbers(tmp_path: Path):
    names = np.array(["dog", "ant", "cat", "unused"])
    data = open_data(saved(tmp_path / "a.npz", images=GREY, labels=[0, 1, 2, -1], classes=names))
    assert data.classes == ("ant", "cat", "dog")
    assert data.splits["all"].labels.tolist() == [2, 0, 1, -1]
    words = open_data(saved(tmp_path / "b.npz", images=GREY, labels=["dog", "ant", "cat", ""]))
    assert (words.classes, words.splits["all"].labels.tolist()) == (data.classes, [2, 0, 1, -1])


def test_a_table_of_zeros_and_ones_is_multi_label_unless_it_is_one_hot(tmp_path: Path):
    table = np.array([[1, 1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0]])
    data = open_data(saved(tmp_path / "a.npz", x=GREY, y=table, class_names=["z", "y", "x"]))
    assert (data.multilabel, data.classes) == (True, ("x", "y", "z"))
    np.testing.assert_array_equal(data.splits["all"].labels.dense(), table[:, ::-1].astype(bool))
    hot = open_data(saved(tmp_path / "b.npz", x=GREY, y=np.eye(4)[[2, 0, 2, 1]]))
    assert (hot.multilabel, hot.splits["all"].labels.tolist()) == (False, [2, 0, 2, 1])
    assert "labels are one-hot: read as one class each" in hot.notes


def test_an_empty_split_is_skipped_and_noted(tmp_path: Path):
    data = open_data(saved(tmp_path / "a.npz", x_train=GREY, y_train=[0, 1, 1, 0], x_test=GREY[:0], y_test=[]))
    assert list(data.splits) == ["train"]
    assert "test is empty, skipped" in data.notes


def test_leave_out_masks_are_unlabelled(tmp_path: Path):
    data = open_data(saved(tmp_path / "a.npz", data=GREY))
    assert (data.classes, data.splits["all"].labels.tolist()) == ((), [-1] * 4)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"weights": GREY}, "found     weights"),
        ({"x": GREY, "y": [0, 1]}, "x has 4 images, but y has the shape (2,)"),
        ({"x": GREY.reshape(4, 6)}, "is not an array of images"),
        ({"x": np.zeros((4, 3, 8, 8), np.uint8)}, "x.transpose(0, 2, 3, 1)"),
        ({"x": GREY.astype(np.int64)}, 'x.astype("uint8")'),
        ({"x": GREY, "y": [0.5, 1, 1, 0]}, "integers or strings"),
        ({"x": GREY, "y": [0, 1, 2, 3], "classes": ["a", "b"]}, "labels from 0 to 3, but 2 class names"),
        ({"x": GREY, "y": [0, 1, 2, -7]}, "labels from -7 to 2"),
        ({"x": GREY, "y": [0, 1, 1, 0], "classes": ["a", "a"]}, "not a list of distinct strings"),
        ({"x": GREY[:0], "y": []}, "holds no images"),
        ({"x_train": GREY, "y_train": np.ones((4, 2)), "x_test": GREY}, "labels (N, K) are missing for test"),
        ({"x": GREY, "images": GREY}, "x and images could both be"),
        ({"x": GREY, "x_train": GREY}, "both x and splits"),
        ({"x_val": GREY, "x_dev": GREY}, "more than one split that could be val: dev, val"),
    ],
)
def test_unsuitable_arrays_are_an_error_that_says_why(arrays: dict, message: str, tmp_path: Path):
    assert message in error_of(saved(tmp_path / "a.npz", **arrays))


def test_pickled_objects_are_not_loaded(tmp_path: Path):
    assert "pickled objects are never loaded" in error_of(
        saved(tmp_path / "a.npz", x=GREY, y=np.array([{}, 1, 2, 3], dtype=object))
    )


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_truncated_files_are_rejected(save, share: float, tmp_path: Path):
    path = saved(tmp_path / "a.npz", save, x=GREY, y=[0, 1, 1, 0])
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert "is not a npz file of plain arrays" in error_of(path)
