"""What an exported file says of itself, in JSON: classes, preprocessing, variant, provenance, how to feed it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from vitkit.data.preprocessing import Preprocessing
from vitkit.data.transforms import Exact
from vitkit.errors import WeightsError
from vitkit.export.trace import LOGITS, PICTURES, PROBABILITIES, Input
from vitkit.predict.classifier import Classifier
from vitkit.weights.native import HEADER, record_of

EXTRA = f"{HEADER}.json"  # the name of the record among the extra files of a .pt2
ZIP = b"PK\x03\x04"  # how a .pt2 begins


def describe(classifier: Classifier, input: Input, numbers: str) -> dict[str, Any]:
    """`numbers` is what the file computes in: float32, or int8 where it can."""
    return {
        **record_of(classifier.model),
        "labels": list(classifier.labels),
        "multilabel": classifier.multilabel,
        "image": list(classifier.exact.image),
        "channels": classifier.model.config.channels,
        "input": input,
        "numbers": numbers,
        "feed": _feed(classifier, input),
        "steps": classifier.exact.describe(),
    }


def _feed(classifier: Classifier, input: Input) -> str:
    """In words, for whoever has the file and nothing else: OpenCV's BGR or a photo on its side would go unnoticed."""
    channels, (height, width) = classifier.model.config.channels, classifier.exact.image
    colours = {1: "grey", 3: "red green blue"}.get(channels, f"{channels} bands")
    if input == "tensor":
        return (
            f"(batch, {channels}, {height}, {width}) float32, {colours}: pictures turned upright as their Exif "
            "says, after the steps, which are not inside"
        )
    return (
        f"(batch, height, width, {channels}) {input} on 0 to 255, {colours}: pictures of any one size, turned "
        "upright as their Exif says, over white where transparent; the steps are inside"
    )


def usage(path: str | Path, metadata: dict[str, Any]) -> dict[str, Any]:
    """What a file takes and gives, in words, and three lines of Python for whoever has it and not vitkit."""
    onnx, name = Path(path).suffix == ".onnx", json.dumps(str(path), ensure_ascii=False)
    takes = metadata["feed"] + (f": {'; '.join(metadata['steps'])}" if metadata["input"] == "tensor" else "")
    labels = f'the labels under "{HEADER}" in its metadata' if onnx else f"the labels in its extra/{EXTRA}"
    asked = (
        f'onnxruntime.InferenceSession({name}).run(None, {{"{PICTURES}": picture[None]}})'
        if onnx
        else f"torch.export.load({name}).module()(torch.from_numpy(picture[None]))"
    )
    opened = _picture(metadata)
    modules = f"import numpy, {'onnxruntime' if onnx else 'torch'}"
    return {
        "takes": takes,
        "gives": f"{PROBABILITIES} and {LOGITS}, (batch, {len(metadata['labels'])}) each, in the order of {labels}",
        "ask": [
            f"{modules}; from PIL import Image, ImageOps" if "Image." in opened else modules,
            f"picture = {opened}",
            f"{PROBABILITIES}, {LOGITS} = {asked}",
        ],
    }


def _picture(metadata: dict[str, Any]) -> str:
    """An expression for one picture as the file takes it."""
    mode = {1: "L", 3: "RGB"}.get(metadata["channels"])
    if metadata["input"] == "tensor" or mode is None:  # no one call makes these
        return 'numpy.load("picture.npy")  # as it takes them, without the batch'
    opened = f'numpy.array(ImageOps.exif_transpose(Image.open("picture.jpg")).convert("{mode}"))'
    bands = "[..., None]" if mode == "L" else ""
    return opened + bands + ('.astype("float32")' if metadata["input"] == "float32" else "")


def read_metadata(path: str | Path) -> dict[str, Any]:
    """The record of a .onnx or .pt2 that `vitkit export` wrote, by content and without running anything in it."""
    path = Path(path)
    try:
        text = _of_program(path) if is_program(path) else _of_onnx(path)
        record = json.loads(text) if text else None
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, zipfile.BadZipFile) as error:
        raise WeightsError(f"{path} is damaged: {error}") from error
    if not isinstance(record, dict):
        raise WeightsError(f"{path} was not written by vitkit export.", looked_for=f"metadata under {HEADER!r}")
    return record


def exact_of(metadata: dict[str, Any]) -> Exact:
    """The preprocessing that a file with a tensor for input leaves to the caller."""
    height, width = metadata["image"]
    return Exact(image=(height, width), preprocessing=Preprocessing.from_record(metadata["preprocessing"]))


def is_program(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(ZIP)) == ZIP


def _of_program(path: Path) -> str | None:
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.split("/")[1:] == ["extra", EXTRA]]
        return archive.read(names[0]).decode("utf-8") if names else None


def _of_onnx(path: Path) -> str | None:
    from vitkit.export.onnx_file import metadata_of

    return metadata_of(path).get(HEADER)
