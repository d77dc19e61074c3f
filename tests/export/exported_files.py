"""Models with their own preprocessing, odd images, and files written and opened again, for tests of exports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.export import ExportedProgram

from tests.data.sample_images import encode, oriented, scene
from tests.model.kinds import make
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.sources.fashion import CLASSES
from vitkit.export.compare import TOLERANCE
from vitkit.export.exported import ExportedModel, open_exported
from vitkit.export.metadata import build_metadata
from vitkit.export.onnx_file import write_onnx
from vitkit.export.pt2 import write_program
from vitkit.export.trace import ExportInput, trace
from vitkit.model.build import Model
from vitkit.predict.classifier import Classifier
from vitkit.predict.inputs import pixels_of

DEEP = encode(Image.fromarray(np.linspace(0, 65535, 24 * 40).reshape(24, 40).astype(np.uint16)), "PNG")  # 16 bits
IMAGES: dict[str, Any] = {
    "turned by Exif": oriented("JPEG", 6, quality=95),
    "wide": scene(20, 90),
    "high": scene(90, 20),
    "the model's size": scene(32, 32),
    "one pixel": scene(1, 1),
    "a line": scene(1, 700),
    "a column": scene(700, 1),
    "large": scene(600, 800),
    "transparent": encode(np.dstack([scene(), scene()[:, :, 0]]), "PNG"),
}


def model(kind: str = "token", **preprocessing: Any) -> Model:
    made = make(kind)
    # bicubic with a crop: no step of the preprocessing is trivial
    chain = Preprocessing(**{"crop": 0.875, "mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.25), **preprocessing})
    made.metadata = replace(made.metadata, labels=tuple(CLASSES), preprocessing=chain)
    return made


def written(
    classifier: Classifier, path: Path, input: ExportInput = "uint8", program: ExportedProgram | None = None
) -> ExportedModel:
    program, metadata = program or trace(classifier, input), build_metadata(classifier, input, "float32")
    (write_onnx if path.suffix == ".onnx" else write_program)(program, path, metadata)
    return open_exported(path)


def assert_same(classifier: Classifier, file: ExportedModel, images: list[Any]) -> None:
    pixels = [pixels_of(image, channels=classifier.model.config.channels) for image in images]
    truth = np.stack([prediction.probabilities for prediction in classifier(images)])
    exported = file.probabilities(pixels)
    np.testing.assert_allclose(exported, truth, atol=TOLERANCE, rtol=0)
    assert (exported.argmax(1) == truth.argmax(1)).all()
