"""The metadata of an exported file, in JSON: classes, preprocessing, variant, provenance, and how to feed it."""

import json
import zipfile
from pathlib import Path
from typing import Any, TypedDict

from vitkit.compute.onnx_session import PACKAGES
from vitkit.data.bounded_read import read_member
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.transforms import EvalTransform
from vitkit.errors import VitkitError, WeightsError
from vitkit.export.trace import IMAGES, LOGITS, PROBABILITIES, ExportInput
from vitkit.predict.classifier import Classifier
from vitkit.regular_file import open_regular
from vitkit.stored_json import MOST_BYTES, parse_json
from vitkit.weights.native import HEADER, record_of

EXTRA = f"{HEADER}.json"  # the name of the metadata among the extra files of a .pt2
ZIP = b"PK\x03\x04"  # the first bytes of a .pt2


class ExportMetadata(TypedDict):
    """The metadata that are read back."""

    labels: list[str]
    image: tuple[int, int]
    channels: int
    input: ExportInput
    preprocessing: dict[str, Any]
    feed: str
    steps: list[str]


def build_metadata(classifier: Classifier, input: ExportInput, precision: str) -> dict[str, Any]:
    """Describe a classifier; `precision` is what the file computes in: float32, or int8 in part."""
    return {
        **record_of(classifier.model),
        "labels": list(classifier.labels),
        "multilabel": classifier.multilabel,
        **({"thresholds": list(classifier.thresholds)} if classifier.thresholds is not None else {}),
        "image": list(classifier.transform.image),
        "channels": classifier.model.config.channels,
        "input": input,
        "numbers": precision,
        "feed": _feed(classifier, input),
        "steps": classifier.transform.describe(),
    }


def _feed(classifier: Classifier, input: ExportInput) -> str:
    """Describe the input for people who have only the file: OpenCV's BGR or a rotated photo would go unnoticed."""
    channels, (height, width) = classifier.model.config.channels, classifier.transform.image
    colours = {1: "grey", 3: "red green blue"}.get(channels, f"{channels} bands")
    if input == "tensor":
        return (
            f"(batch, {channels}, {height}, {width}) float32, {colours}: images turned upright as their Exif "
            "says, after the steps, which are not inside"
        )
    return (
        f"(batch, height, width, {channels}) {input} on 0 to 255, {colours}: images of any one size, turned "
        "upright as their Exif says and put on white where transparent; resizing and scaling are inside"
    )


def usage(path: str | Path, metadata: dict[str, Any]) -> dict[str, Any]:
    """Describe what a file takes and gives, with a few lines of Python for people who do not have vitkit."""
    onnx = Path(path).suffix == ".onnx"
    takes = metadata["feed"] + (f": {'; '.join(metadata['steps'])}" if metadata["input"] == "tensor" else "")
    labels = f'the labels under "{HEADER}" in its metadata' if onnx else f"the labels in its extra/{EXTRA}"
    return {
        "takes": takes,
        "gives": f"{PROBABILITIES} and {LOGITS}, (batch, {len(metadata['labels'])}) each, in the order of {labels}",
        "ask": [
            *_image_lines(metadata, f"import json, numpy, {'onnxruntime' if onnx else 'torch'}"),
            *_run_lines(json.dumps(str(path), ensure_ascii=False), onnx),
            f"for index in {PROBABILITIES}[0].argsort()[::-1][:5]:",
            f'    print(f"{{{PROBABILITIES}[0][index]:.1%}}  {{labels[index]}}")',
        ],
    }


def _image_lines(metadata: dict[str, Any], modules: str) -> list[str]:
    """Return the lines that make `pixels` of one image, as vitkit's decoder does: upright, over white, all 16 bits."""
    mode = {1: "L", 3: "RGB"}.get(metadata["channels"])
    if metadata["input"] == "tensor" or mode is None:  # no few calls make these
        return [modules, 'pixels = numpy.load("image.npy")  # as the file takes it, without the batch dimension']
    convert = f'numpy.array(image.convert("{mode}"))' + ("[..., None]" if mode == "L" else "")
    rounded = ".round()" if metadata["input"] == "uint8" else ""
    return [
        modules,
        "from PIL import Image, ImageOps",
        'image = ImageOps.exif_transpose(Image.open("image.jpg"))  # upright',
        'if image.mode.startswith("I"):  # 16 bits of grey; vitkit also scales floats, which this does not',
        f"    pixels = (numpy.array(image)[..., None].repeat({metadata['channels']}, axis=2) / 257){rounded}",
        "else:",
        "    if image.has_transparency_data:  # over white",
        '        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))',
        f"    pixels = {convert}",
        f'pixels = pixels.astype("{metadata["input"]}")',
    ]


def _run_lines(name: str, onnx: bool) -> list[str]:
    """Return the lines that run a file on `pixels` and read its class names."""
    if onnx:
        return [
            f"session = onnxruntime.InferenceSession({name})",
            f'{PROBABILITIES}, {LOGITS} = session.run(None, {{"{IMAGES}": pixels[None]}})',
            f'labels = json.loads(session.get_modelmeta().custom_metadata_map["{HEADER}"])["labels"]',
        ]
    return [
        f'extra = {{"{EXTRA}": ""}}',
        f"program = torch.export.load({name}, extra_files=extra).module()",
        f"{PROBABILITIES}, {LOGITS} = (output.detach().numpy() for output in program(torch.from_numpy(pixels[None])))",
        f'labels = json.loads(extra["{EXTRA}"])["labels"]',
    ]


def read_metadata(path: str | Path) -> dict[str, Any]:
    """Return the metadata of a .onnx or .pt2 that `vitkit export` wrote, without running anything in it."""
    path = Path(path)
    try:
        text = _read_pt2(path) if is_pt2(path) else _read_onnx(path)
        record: dict[str, Any] | None = (
            parse_json(text, ExportMetadata, f"the metadata of {path}", error=WeightsError) if text else None
        )
    except WeightsError:
        raise
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, zipfile.BadZipFile) as error:
        raise WeightsError(f"{path} is damaged: {error}") from error
    if record is None:
        raise WeightsError(f"{path} was not written by vitkit export.", looked_for=f"metadata under {HEADER!r}")
    return record


def transform_of(metadata: dict[str, Any]) -> EvalTransform:
    """Return the preprocessing that a file with tensor input leaves to the caller."""
    height, width = metadata["image"]
    return EvalTransform(image=(height, width), preprocessing=Preprocessing.from_record(metadata["preprocessing"]))


def is_pt2(path: Path) -> bool:
    with open_regular(path) as file:
        start: bytes = file.read(len(ZIP))
    return start == ZIP


def _read_pt2(path: Path) -> str | None:
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.split("/")[1:] == ["extra", EXTRA]]
        return read_member(archive, names[0], MOST_BYTES).decode("utf-8") if names else None


def _read_onnx(path: Path) -> str | None:
    check_installed()
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
    except OSError:
        raise
    except Exception as error:  # protobuf's, which comes without types
        raise WeightsError(f"{path} is neither an ONNX file nor a .pt2.") from error
    return {entry.key: entry.value for entry in model.metadata_props}.get(HEADER)


class ExportError(VitkitError):
    """A file that cannot be written as requested, or that does not agree with its model."""


def check_installed() -> None:
    missing = []
    for name in PACKAGES:
        try:
            __import__(name)
        except ImportError:
            missing.append(name)
    if missing:
        raise ExportError(f"ONNX needs {', '.join(missing)}.", try_='pip install "vitkit[export]", or --to pt2')
