"""Features equal the model's own on pictures prepared by hand, and are computed once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.evaluate.small import as_input, small_model, some_fashion
from tests.model.kinds import make
from vitkit.data.sources.base import DataError, Names, Split
from vitkit.data.sources.open import open_data
from vitkit.errors import WeightsError
from vitkit.evaluate.features import Extractor, Features, weights_hash, write_features
from vitkit.model.build import Model


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pictures a model was shown, each time."""
    seen: list[int] = []
    real = Extractor._compute

    def counted(self: Extractor, split: Split, max_failed: float):
        seen.append(len(split))
        return real(self, split, max_failed)

    monkeypatch.setattr(Extractor, "_compute", counted)
    return seen


def by_hand(model: Model, split: Split) -> np.ndarray:
    with torch.no_grad():
        _, seen = model(
            torch.stack([as_input(split.read(index)) for index in range(len(split))]), capture=("representation",)
        )
    return seen["representation"].numpy()


def photos(folder: Path, count: int = 12) -> Path:
    for index in range(count):
        path = folder / "photos" / ("a" if index % 2 else "b") / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(index).integers(0, 255, (28, 28), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return folder / "photos"


def test_they_are_the_representation_of_every_picture_in_order(tmp_path: Path):
    model, split = small_model().train(), some_fashion(20).splits["test"]
    found = Extractor(model=model, batch=7, place=tmp_path)(split)
    assert model.training
    assert found.values.dtype == np.float32
    np.testing.assert_allclose(found.values, by_hand(model.eval(), split), atol=1e-5)
    assert found.labels.tolist() == split.labels.tolist()
    assert list(found.keys) == list(split.keys)
    assert found.failures == {}


def test_a_second_look_computes_nothing(tmp_path: Path, looks: list[int]):
    split = some_fashion(20).splits["test"]
    first = Extractor(model=small_model(), place=tmp_path)(split)
    again = Extractor(model=small_model(), place=tmp_path, batch=3)(split)
    assert looks == [50]
    np.testing.assert_array_equal(first.values, again.values)


def test_names_labels_and_the_head_do_not_matter(tmp_path: Path, looks: list[int]):
    split = some_fashion(20).splits["test"]
    Extractor(model=small_model(), place=tmp_path)(split)
    renamed = replace(split, keys=Names(map(str, range(50))), labels=np.zeros(50, np.int64))
    found = Extractor(model=small_model(("sandal", "hat")), place=tmp_path)(renamed)
    assert looks == [50]
    assert found.keys[3] == "3"
    assert not found.labels.any()


@pytest.mark.parametrize("change", ["weights", "preprocessing", "image", "precision", "pictures", "order"])
def test_whatever_changes_the_numbers_is_computed_anew(change: str, tmp_path: Path, looks: list[int]):
    model, split, precision = small_model(), some_fashion(20).splits["test"], "fp32"
    Extractor(model=model, place=tmp_path)(split)
    if change == "weights":
        with torch.no_grad():
            next(model.parameters()).mul_(1.001)
    elif change == "preprocessing":
        model.metadata = replace(model.metadata, preprocessing=replace(model.metadata.preprocessing, crop=0.9))
    elif change == "image":
        model.resize(32)
    elif change == "precision":
        precision = "bf16"
    else:
        split = split.select(np.arange(50)[::-1]) if change == "order" else split.select(np.arange(49))
    found = Extractor(model=model, precision=precision, place=tmp_path)(split)
    assert looks == [50, len(split)]
    assert found.values.dtype == np.float32


@pytest.mark.parametrize("damage", ["cut", "garbage", "flipped", "other arrays", "pickle"])
def test_a_damaged_memory_is_computed_anew_and_mended(damage: str, tmp_path: Path, looks: list[int]):
    model, split = small_model(), some_fashion(20).splits["test"]
    first = Extractor(model=model, place=tmp_path)(split)
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(content[:-100])
    elif damage == "garbage":
        file.write_bytes(b"not an archive")
    elif damage == "flipped":
        content[1000] ^= 255
        file.write_bytes(content)
    elif damage == "other arrays":
        np.savez(file, values=np.zeros((3, 2), np.float32), known=np.ones(3, bool))
    else:
        np.savez(file, values=np.array([{}], dtype=object), known=np.ones(50, bool))
    for _ in range(2):
        np.testing.assert_array_equal(Extractor(model=model, place=tmp_path)(split).values, first.values)
    assert looks == [50, 50]


def test_a_place_that_cannot_be_written_costs_no_answers(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    assert len(Extractor(model=small_model(), place=tmp_path / "file")(some_fashion(100).splits["test"])) == 10


def test_without_a_place_it_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    Extractor(model=small_model())(some_fashion(100).splits["test"])
    assert [path.suffix for path in (tmp_path / "vitkit" / "features").iterdir()] == [".npz"]


def test_a_broken_picture_is_left_out_named_and_tried_again(tmp_path: Path, looks: list[int]):
    folder = photos(tmp_path)
    (folder / "a" / "1.png").write_bytes(b"")
    split = open_data(folder).splits["all"]
    model = small_model()
    for _ in range(2):
        found = Extractor(model=model, place=tmp_path / "memory")(split)
        assert len(found) == len(found.keys) == len(found.labels) == 11
        assert [*found.failures] == ["a/1.png"]
        whole = split.select(np.array([key != "a/1.png" for key in split.keys]))
        assert list(found.keys) == list(whole.keys)
    assert looks == [12, 1]


def test_too_many_broken_pictures_are_an_error_however_many_are_known(tmp_path: Path):
    folder = photos(tmp_path)
    for name in ("1", "3"):
        (folder / "a" / f"{name}.png").write_bytes(b"")
    split = open_data(folder).splits["all"]
    found = Extractor(model=small_model(), place=tmp_path / "memory", max_failed=0.5)(split)
    assert len(found.failures) == 2
    with pytest.raises(DataError, match="could not be decoded"):
        Extractor(model=small_model(), place=tmp_path / "memory", max_failed=0.01)(split)
    with pytest.raises(DataError, match="nothing to look at"):
        Extractor(model=small_model(), place=tmp_path, max_failed=1)(
            split.select([index for index, key in enumerate(split.keys) if key in ("a/1.png", "a/3.png")])
        )


def test_weights_that_give_no_numbers_are_said(tmp_path: Path):
    model = small_model()
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(WeightsError, match="no finite numbers for 10 of 10"):
        Extractor(model=model, place=tmp_path)(some_fashion(100).splits["test"])
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("kind", ["representation", "attention pool", "no head", "root hybrid"])
def test_the_hash_knows_the_weights_and_outlives_a_file(kind: str, tmp_path: Path):
    model = make(kind)
    vitkit.save(model, tmp_path / "saved")
    assert weights_hash(vitkit.load(tmp_path / "saved")) == weights_hash(model)
    with torch.no_grad():
        next(model.parameters()).view(-1)[0].add_(1)
    assert weights_hash(vitkit.load(tmp_path / "saved")) != weights_hash(model)


def test_after_a_pre_training_layer_it_is_that_layers_output(tmp_path: Path):
    model, split = make("representation"), some_fashion(100).splits["test"]
    values = Extractor(model=model, place=tmp_path)(split).values
    assert values.shape == (10, 24)
    assert np.abs(values).max() <= 1  # tanh


def test_the_file_for_others_has_all_parts(tmp_path: Path):
    one, other = (
        Features(np.full((n, 2), n, np.float32), np.arange(n), Names(f"{n}/ü{i}" for i in range(n))) for n in (3, 2)
    )
    write_features(tmp_path / "out.npz", {"train": one, "test": other}, ("a", "b", "c"))
    with np.load(tmp_path / "out.npz", allow_pickle=False) as file:
        assert file["features"].tolist() == [[3, 3]] * 3 + [[2, 2]] * 2
        assert file["labels"].tolist() == [0, 1, 2, 0, 1]
        assert file["keys"].tolist() == ["3/ü0", "3/ü1", "3/ü2", "2/ü0", "2/ü1"]
        assert file["split"].tolist() == ["train"] * 3 + ["test"] * 2
        assert file["class_names"].tolist() == ["a", "b", "c"]
