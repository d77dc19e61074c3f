"""`vitkit.preprocess` gives the input of a model to a training loop of one's own."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import vitkit
from tests.data.sample_images import oriented, scene
from vitkit.model.build import Model


@pytest.fixture
def model() -> Model:
    return vitkit.create("mu/4", image=16, classes=3).eval()


class Photos(torch.utils.data.Dataset[torch.Tensor]):
    """A dataset as people write it."""

    def __init__(self, paths: list[Path], model: Model):
        self.paths, self.transform = paths, vitkit.preprocess(model)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index]) as image:
            return self.transform(image)


def test_a_loop_in_plain_torch_gives_the_predictions_of_a_classifier(model: Model, tmp_path: Path):
    paths = []
    for index in range(5):
        paths.append(tmp_path / f"{index}.jpg")
        paths[-1].write_bytes(oriented("JPEG", 1 + index))
    loader = DataLoader(Photos(paths, model), batch_size=2, num_workers=1)
    with torch.no_grad():
        answers = torch.cat([model(images).softmax(1) for images in loader])
    for row, prediction in zip(answers, vitkit.Classifier(model)(paths), strict=True):
        np.testing.assert_allclose(row, prediction.probabilities, atol=1e-6)


def test_it_equals_pillows_resize_and_the_weights_normalisation(model: Model):
    square = Image.fromarray(scene(40, 40))
    mean, std = (
        torch.tensor(values)[:, None, None]
        for values in (model.metadata.preprocessing.mean, model.metadata.preprocessing.std)
    )
    side = round(16 / model.metadata.preprocessing.crop)
    resized = square.resize(
        (side, side),
        Image.Resampling.BICUBIC
        if (model.metadata.preprocessing.interpolation == "bicubic")
        else Image.Resampling.BILINEAR,
    )
    start = (side - 16) // 2
    theirs = torch.from_numpy(np.asarray(resized)[start : start + 16, start : start + 16].copy()).permute(2, 0, 1) / 255
    assert (vitkit.preprocess(model)(square) - (theirs - mean) / std).abs().max() < 1.1 / 255 / std.min()


def test_every_form_of_an_image_gives_the_same_and_the_size_is_the_models(model: Model, tmp_path: Path):
    path = tmp_path / "a.png"
    Image.fromarray(scene()).save(path)
    with path.open("rb") as file:
        forms = [path, str(path), path.read_bytes(), io.BytesIO(path.read_bytes()), file, scene(), Image.open(path)]
        preprocessed = [vitkit.preprocess(model)(form) for form in forms]
    assert all(torch.equal(one, preprocessed[0]) for one in preprocessed)
    assert preprocessed[0].shape == (3, 16, 16)
    model.resize(24)
    assert vitkit.preprocess(model)(path).shape == (3, 24, 24)
    model.replace_head(0)  # no classes to answer with, and images all the same
    assert vitkit.preprocess(model)(path).shape == (3, 24, 24)
