"""The trained Ti/16 reproduces the paper's figures."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

import vitkit
from tests.weights.make_ti16 import fashion_inputs
from vitkit.data.decode import decode
from vitkit.data.transforms import EvalTransform
from vitkit.inspect.distance import attention_distance
from vitkit.inspect.embeddings import position_similarity, similarity_by_offset, similarity_by_steps
from vitkit.model.vit import VisionTransformer

IMAGES = 16


@pytest.fixture(scope="module")
def shared_folder() -> Path:
    folder = Path(__file__).parents[3] / "shared"
    if not folder.is_dir():
        pytest.skip("needs ../shared: real photos that are not part of the repository")
    return folder


@pytest.fixture(scope="module")
def model() -> VisionTransformer:
    return vitkit.load("ti16")


@pytest.fixture(scope="module")
def photos(shared_folder: Path, model: VisionTransformer) -> torch.Tensor:
    transform = EvalTransform(image=model.config.image, preprocessing=model.metadata.preprocessing)
    with tarfile.open(shared_folder / "data" / "pets160.tar") as archive:
        members = [member for member in archive.getmembers() if member.name.endswith(".jpg")]
        chosen = members[:: len(members) // IMAGES][:IMAGES]
        files = [archive.extractfile(member) or io.BytesIO() for member in chosen]
        return torch.stack([transform(decode(file.read())) for file in files])


def test_similarity_falls_with_distance_and_rows_and_columns_show(model: VisionTransformer):
    similarity = position_similarity(model)
    steps = similarity_by_steps(similarity)
    assert steps[1] == pytest.approx(0.85, abs=0.01)
    assert steps[8] == pytest.approx(0.03, abs=0.01)
    assert (np.diff(steps[:14]) < 0).all()
    across, down = similarity_by_offset(similarity)
    assert (across[4:] > steps[4:14]).all()
    assert (down[5:] > steps[5:14]).all()


def test_attention_distance_grows_with_depth_on_images_inside_the_package(model: VisionTransformer):
    distance = attention_distance(model, fashion_inputs())
    assert distance.per_layer[:4].mean() < distance.per_layer[-4:].mean() / 1.8
    assert np.corrcoef(np.arange(12), distance.per_layer)[0, 1] > 0.9
    assert distance.per_head[:3].min() < 30  # some heads of the lowest layers attend locally
    assert distance.per_head[:3].max() > 70  # while others attend globally


def test_attention_distance_grows_with_depth_on_real_photos(model: VisionTransformer, photos: torch.Tensor):
    distance = attention_distance(model, photos)
    assert distance.per_layer[:4].mean() < 60
    assert distance.per_layer[-4:].mean() > 120
    assert np.corrcoef(np.arange(12), distance.per_layer)[0, 1] > 0.9
    assert distance.per_head[:3].min() < 30  # some heads of the lowest layers attend locally
    assert distance.per_head[:3].max() > 70  # while others attend globally
