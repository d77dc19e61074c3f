"""int8 files: which layers are quantized, and when a file is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import vitkit
from tests.data.sample_images import scene
from tests.export.exported_files import model, written
from vitkit.data.sources.open import open_data
from vitkit.export import write as exporting
from vitkit.export.exported import OnnxModel, open_exported
from vitkit.export.metadata import ExportError
from vitkit.export.quantize import _layers, quantize
from vitkit.export.write import export_int8
from vitkit.predict.classifier import Classifier
from vitkit.predict.samples import find_samples, package_samples

IMAGES = [scene(40, 60), scene(33, 20)[:, ::-1].copy(), 255 - scene(50, 50)]


@pytest.fixture(scope="module")
def with_outlier() -> Classifier:
    """Make one hidden unit of the last MLP some hundred times the others, with little effect, as in real ViTs."""
    torch.manual_seed(0)
    made = model()
    with torch.no_grad():
        mlp = made.encoder.blocks[-1].mlp
        mlp.up.bias[3] = 3000.0
        mlp.down.weight[:, 3] *= 1e-4
    return Classifier(made)


@pytest.fixture(scope="module")
def plain(with_outlier: Classifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("float32") / "model.onnx"
    written(with_outlier, path, "tensor")  # quicker, and without a matrix less
    return path


def test_a_layer_with_an_outlier_stays_in_float32_and_predictions_stay(plain: Path, tmp_path: Path):
    [last] = [name for name, (_, weights) in _layers(onnx.load(plain)).items() if 0 < np.abs(weights[3]).max() < 1e-3]
    kept = quantize(plain, tmp_path / "int8.onnx", IMAGES, json.dumps({**open_exported(plain).metadata}))
    assert kept == [last]
    quantized, exact = (open_exported(path).probabilities(IMAGES) for path in (tmp_path / "int8.onnx", plain))
    assert 0 < np.abs(quantized - exact).max() < 0.05
    content = onnx.load(tmp_path / "int8.onnx")
    rounded = [node for node in content.graph.node if node.op_type == "MatMulInteger"]
    assert len(rounded) == len(_layers(onnx.load(plain))) - 1
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in content.graph.initializer}
    for node in rounded:  # 7 bits: products of two fit into the 16-bit sums of CPUs without VNNI
        assert np.abs(weights[node.input[1]].astype(int)).max() <= 64


def test_int8_is_scored_and_one_that_loses_too_much_is_not_kept(
    with_outlier: Classifier, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(exporting, "_write", lambda _, path, *rest: OnnxModel(shutil.copy(plain, path)))
    samples = find_samples("", with_outlier.model, "fashion")
    asked: dict[str, Any] = {"input": "tensor", "samples": samples}
    made = export_int8(with_outlier, tmp_path / "model.onnx", max_images=40, max_drop=100, **asked)
    assert made.comparison.labelled == 40
    assert made.comparison.images == 46
    record = json.loads((tmp_path / "model.onnx.json").read_text())
    assert record["int8"]["drop"] == pytest.approx(
        100 * (record["comparison"]["accuracy"] - record["comparison"]["file_accuracy"])
    )
    assert set(record["int8"]["speed"]) == {"1", "8"}
    assert record["int8"]["beside"] == pytest.approx(_batch_effect(made.path, samples.calibration(16)), rel=0.5)
    assert open_exported(made.path).metadata["numbers"] == "int8"
    with pytest.raises(ExportError, match="was not written"):  # whatever it loses
        export_int8(with_outlier, tmp_path / "other.onnx", max_images=5, max_drop=-101, **asked)
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "model.onnx.json"}


def test_a_missing_folder_is_a_readable_error(with_outlier: Classifier, tmp_path: Path):
    with pytest.raises(ExportError, match="cannot be written: No such file or directory"):
        export_int8(with_outlier, tmp_path / "nowhere" / "model.onnx")


def _batch_effect(path: Path, images: list[np.ndarray]) -> float:
    """Return how far the other images of a batch, which share one scale, move a probability."""
    session, ready = onnxruntime.InferenceSession(path), open_exported(path).prepare
    images = np.stack([ready(pixels) for pixels in images])
    alone = np.concatenate([session.run(["probabilities"], {"images": image[None]})[0] for image in images])
    return float(np.abs(session.run(["probabilities"], {"images": images})[0] - alone).max())


@pytest.mark.slow
def test_convolutions_are_refused(tmp_path: Path):
    classifier = Classifier(model("ResNet"))
    with pytest.raises(ExportError, match="int8 is for models of matrices"):
        export_int8(classifier, tmp_path / "model.onnx", max_drop=100)
    assert list(tmp_path.iterdir()) == []


def test_samples_are_spread_over_the_split_and_have_the_models_labels():
    classifier = Classifier(vitkit.create("mu/8", classes=2, image=32), labels=["trouser", "bag"])
    samples = find_samples("", classifier.model, "fashion").spread(10)
    names = open_data("fashion").classes
    shown = [names[index] for index in range(10)]
    expected = [{"trouser": 0, "bag": 1}.get(name, -1) for name in sorted(shown)]
    assert sorted(samples.split.labels) == sorted(expected)
    assert len(samples.calibration(3)) == 3


def test_a_model_of_five_channels_gets_grey_images_as_channels():
    classifier = Classifier(vitkit.create("mu/8", classes=2, image=32, channels=5))
    samples = package_samples(classifier.model)
    shapes = {pixels.shape for _, pixels in samples.spread(3)}
    assert shapes == {(28, 28, 5)}
    assert not samples.labelled
