"""Models with their own preprocessing, odd images, and files written and opened again, for tests of exports."""

from __future__ import annotations

import io
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


def odd_images() -> dict[str, bytes]:
    """Return images that a plain reader gets wrong: transparent, rotated, of more or fewer bits, in other colours."""
    noise = np.random.default_rng(0).integers(0, 256, (41, 53, 4), dtype=np.uint8)
    rgba, rgb = Image.fromarray(noise), Image.fromarray(noise[..., :3])
    palette = rgb.quantize(16)
    deep = np.random.default_rng(1).integers(0, 65536, (41, 53), dtype=np.uint16)
    encoded = {"rotated.jpg": oriented("JPEG", 6, quality=95)}
    for name, image, options in (
        ("transparent.png", rgba, {}),
        ("grey and alpha.png", rgba.convert("LA"), {}),
        ("palette.png", palette, {"transparency": 3}),
        ("palette with bytes of alpha.png", palette, {"transparency": bytes(range(0, 256, 16))}),
        ("one transparent colour.png", rgb, {"transparency": tuple(noise[0, 0, :3].tolist())}),
        ("16 bits.png", Image.fromarray(deep), {}),
        ("grey.png", rgb.convert("L"), {}),
        ("black and white.png", rgb.convert("1"), {}),
        ("cmyk.jpg", rgb.convert("CMYK"), {"quality": 95}),
        ("moving.gif", palette, {"save_all": True, "append_images": [palette.rotate(180)]}),
        ("transparent.webp", rgba, {"lossless": True}),
    ):
        buffer = io.BytesIO()
        image.save(buffer, {"jpg": "JPEG"}.get(name[-3:], name.rsplit(".")[-1].upper()), **options)
        encoded[name] = buffer.getvalue()
    return encoded


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
