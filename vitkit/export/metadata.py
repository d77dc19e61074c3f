"""The metadata of an exported file, in JSON: classes, preprocessing, variant, provenance, and how to feed it."""

import zipfile
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from vitkit.compute.onnx_session import PACKAGES
from vitkit.compute.windows import MANY
from vitkit.data.bounded_read import read_member
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.transforms import EvalTransform
from vitkit.errors import VitkitError, WeightsError
from vitkit.export.trace import ExportInput, ExportTask, Predictor
from vitkit.predict.segmentation import ImageSegmenter
from vitkit.regular_file import open_regular
from vitkit.stored_json import MOST_BYTES, parse_json
from vitkit.weights.native import HEADER, record_of

EXTRA = f"{HEADER}.json"  # the name of the metadata among the extra files of a .pt2
ZIP = b"PK\x03\x04"  # the first bytes of a .pt2


class ExportMetadata(TypedDict):
    """The metadata that are read back."""

    labels: list[str]
    task: NotRequired[ExportTask]
    palette: NotRequired[list[tuple[int, int, int]]]
    image: tuple[int, int]
    channels: int
    input: ExportInput
    preprocessing: dict[str, Any]
    feed: str
    steps: list[str]


def build_metadata(predictor: Predictor, input: ExportInput, precision: str) -> dict[str, Any]:
    """Describe a model; `precision` is what the file computes in: float32, or int8 in part."""
    return {
        **record_of(predictor.model),
        **_describe_answers(predictor),
        "image": list(predictor.transform.image),
        "channels": predictor.model.config.channels,
        "input": input,
        "numbers": precision,
        "feed": _feed(predictor, input),
        "steps": predictor.transform.describe(),
    }


def _describe_answers(predictor: Predictor) -> dict[str, Any]:
    if isinstance(predictor, ImageSegmenter):
        return {
            "labels": list(predictor.classes),
            "task": "segment",
            "palette": [list(colour) for colour in predictor.palette],
        }
    return {
        "labels": list(predictor.labels),
        "multilabel": predictor.multilabel,
        **({"thresholds": list(predictor.thresholds)} if predictor.thresholds is not None else {}),
    }


def _feed(predictor: Predictor, input: ExportInput) -> str:
    """Describe the input for people who have only the file: OpenCV's BGR or a rotated photo would go unnoticed."""
    channels, (height, width) = predictor.model.config.channels, predictor.transform.image
    colours = {1: "grey", 3: "red green blue"}.get(channels, f"{channels} bands")
    if input == "tensor":
        return (
            f"(batch, {channels}, {height}, {width}) float32, {colours}: images turned upright as their Exif "
            "says, after the steps, which are not inside"
        )
    return (
        f"(batch, height, width, {channels}) {input} on 0 to 255, {colours}: images of any one size, turned "
        f"upright as their Exif says and put on white where transparent; resizing and scaling are inside"
        f"{_large_images(predictor)}"
    )


def _large_images(predictor: Predictor) -> str:
    """Describe the one difference between a file and vitkit, which cuts large images into windows."""
    trained = predictor.compute.trained_size if isinstance(predictor, ImageSegmenter) else None
    if trained is None:
        return ""
    return (
        f"; an image of more than {MANY * trained[0] * trained[1]:,} pixels, which vitkit cuts into windows of "
        f"{trained[0]} x {trained[1]}, is squashed as a whole here"
    )


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


def task_of(metadata: dict[str, Any]) -> ExportTask:
    """Return what a file was exported for; those of classifiers do not say it."""
    task: ExportTask = metadata.get("task", "classify")
    return task


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
