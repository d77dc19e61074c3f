"""Features equal the model's own on images that are preprocessed by hand, and are computed once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.evaluate.small_model import as_input, small_model, some_fashion
from tests.model.kinds import make
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.sources.dataset import DataError, PackedStrings, Split
from vitkit.data.sources.open import open_data
from vitkit.errors import WeightsError
from vitkit.evaluate.features import FeatureExtractor, Features, weights_hash, write_features
from vitkit.model.build import Model


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that records for how many images features are computed each time."""
    images: list[int] = []
    real = FeatureExtractor._compute

    def counted(self: FeatureExtractor, split: Split, total: int):
        images.append(len(split))
        return real(self, split, total)

    monkeypatch.setattr(FeatureExtractor, "_compute", counted)
    return images


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


def test_features_are_the_representation_of_every_image_in_order(tmp_path: Path):
    model, split = small_model().train(), some_fashion(20).splits["test"]
    features = FeatureExtractor(model=model, batch=7, cache_folder=tmp_path)(split)
    assert model.training
    assert features.values.dtype == np.float32
    np.testing.assert_allclose(features.values, by_hand(model.eval(), split), atol=80 * np.finfo(np.float32).eps)
    assert features.labels.tolist() == split.labels.tolist()
    assert list(features.keys) == list(split.keys)
    assert features.failures == {}


def test_a_second_extraction_computes_nothing(tmp_path: Path, computed: list[int]):
    split = some_fashion(20).splits["test"]
    first = FeatureExtractor(model=small_model(), cache_folder=tmp_path)(split)
    second = FeatureExtractor(model=small_model(), cache_folder=tmp_path, batch=3)(split)
    assert computed == [50]
    np.testing.assert_array_equal(first.values, second.values)


def test_caches_of_vitkit_0_1_0_are_found(fixtures: Path, tmp_path: Path):
    model = vitkit.load(fixtures / "google_token_weights.npz")
    model.metadata = replace(model.metadata, preprocessing=Preprocessing())  # as an npz was read then
    split = open_data("fashion").splits["test"].select(np.arange(10))
    FeatureExtractor(model=model, cache_folder=tmp_path)(split)
    assert [path.name for path in tmp_path.iterdir()] == ["d5e4455640347217e1930b86f045b91b.npz"]


def test_names_labels_and_the_head_do_not_matter(tmp_path: Path, computed: list[int]):
    split = some_fashion(20).splits["test"]
    FeatureExtractor(model=small_model(), cache_folder=tmp_path)(split)
    renamed = replace(split, keys=PackedStrings(map(str, range(50))), labels=np.zeros(50, np.int64))
    features = FeatureExtractor(model=small_model(("sandal", "hat")), cache_folder=tmp_path)(renamed)
    assert computed == [50]
    assert features.keys[3] == "3"
    assert not features.labels.any()


@pytest.mark.parametrize("change", ["weights", "preprocessing", "image", "precision", "images", "order"])
def test_a_change_that_affects_features_computes_them_again(change: str, tmp_path: Path, computed: list[int]):
    model, split, precision = small_model(), some_fashion(20).splits["test"], "fp32"
    FeatureExtractor(model=model, cache_folder=tmp_path)(split)
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
    features = FeatureExtractor(model=model, precision=precision, cache_folder=tmp_path)(split)
    assert computed == [50, len(split)]
    assert features.values.dtype == np.float32


@pytest.mark.parametrize("damage", ["cut", "garbage", "flipped", "other arrays", "pickle"])
def test_a_damaged_cache_is_computed_again_and_repaired(damage: str, tmp_path: Path, computed: list[int]):
    model, split = small_model(), some_fashion(20).splits["test"]
    first = FeatureExtractor(model=model, cache_folder=tmp_path)(split)
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
        np.testing.assert_array_equal(FeatureExtractor(model=model, cache_folder=tmp_path)(split).values, first.values)
    assert computed == [50, 50]


def test_a_cache_that_cannot_be_written_costs_no_results(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    assert (
        len(FeatureExtractor(model=small_model(), cache_folder=tmp_path / "file")(some_fashion(100).splits["test"]))
        == 10
    )


def test_the_default_cache_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    FeatureExtractor(model=small_model())(some_fashion(100).splits["test"])
    assert [path.suffix for path in (tmp_path / "vitkit" / "features").iterdir()] == [".npz"]


def test_a_broken_image_is_skipped_named_and_retried(tmp_path: Path, computed: list[int]):
    folder = photos(tmp_path)
    (folder / "a" / "1.png").write_bytes(b"")
    split = open_data(folder).splits["all"]
    model = small_model()
    for _ in range(2):
        features = FeatureExtractor(model=model, cache_folder=tmp_path / "cache")(split)
        assert len(features) == len(features.keys) == len(features.labels) == 11
        assert [*features.failures] == ["a/1.png"]
        decodable = split.select(np.array([key != "a/1.png" for key in split.keys]))
        assert list(features.keys) == list(decodable.keys)
    assert computed == [12, 1]


def test_too_many_broken_images_are_an_error_however_many_are_cached(tmp_path: Path):
    folder = photos(tmp_path)
    for name in ("1", "3"):
        (folder / "a" / f"{name}.png").write_bytes(b"")
    split = open_data(folder).splits["all"]
    features = FeatureExtractor(model=small_model(), cache_folder=tmp_path / "cache", max_failed=0.5)(split)
    assert len(features.failures) == 2
    with pytest.raises(DataError, match="could not be decoded"):
        FeatureExtractor(model=small_model(), cache_folder=tmp_path / "cache", max_failed=0.01)(split)
    with pytest.raises(DataError, match="no features to extract"):
        FeatureExtractor(model=small_model(), cache_folder=tmp_path, max_failed=1)(
            split.select([index for index, key in enumerate(split.keys) if key in ("a/1.png", "a/3.png")])
        )


def test_features_that_are_not_finite_are_an_error(tmp_path: Path):
    model = small_model()
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(WeightsError, match="features are not finite for 10 of 10"):
        FeatureExtractor(model=model, cache_folder=tmp_path)(some_fashion(100).splits["test"])
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("kind", ["representation", "attention pool", "no head", "root hybrid"])
def test_the_hash_depends_on_the_weights_and_survives_saving(kind: str, tmp_path: Path):
    model = make(kind)
    vitkit.save(model, tmp_path / "saved")
    assert weights_hash(vitkit.load(tmp_path / "saved")) == weights_hash(model)
    with torch.no_grad():
        next(model.parameters()).view(-1)[0].add_(1)
    assert weights_hash(vitkit.load(tmp_path / "saved")) != weights_hash(model)


def test_features_are_taken_after_a_pre_training_layer(tmp_path: Path):
    model, split = make("representation"), some_fashion(100).splits["test"]
    values = FeatureExtractor(model=model, cache_folder=tmp_path)(split).values
    assert values.shape == (10, 24)
    assert np.abs(values).max() <= 1  # tanh


def test_the_written_file_has_all_splits(tmp_path: Path):
    one, other = (
        Features(np.full((n, 2), n, np.float32), np.arange(n), PackedStrings(f"{n}/ü{i}" for i in range(n)))
        for n in (3, 2)
    )
    write_features(tmp_path / "out.npz", {"train": one, "test": other}, ("a", "b", "c"))
    with np.load(tmp_path / "out.npz", allow_pickle=False) as file:
        assert file["features"].tolist() == [[3, 3]] * 3 + [[2, 2]] * 2
        assert file["labels"].tolist() == [0, 1, 2, 0, 1]
        assert file["keys"].tolist() == ["3/ü0", "3/ü1", "3/ü2", "2/ü0", "2/ü1"]
        assert file["split"].tolist() == ["train"] * 3 + ["test"] * 2
        assert file["class_names"].tolist() == ["a", "b", "c"]
