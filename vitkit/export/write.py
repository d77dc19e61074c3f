"""Export a model to a file for other runtimes; it is compared with the model before it gets its name."""

import json
import math
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitkit.atomic import replacing, temporary_folder, write_text
from vitkit.errors import ConfigError
from vitkit.export.compare import Comparison, compare
from vitkit.export.compare_masks import MaskComparison, compare_masks
from vitkit.export.exported import ExportedModel, OnnxModel, Pt2Model
from vitkit.export.metadata import ExportError, build_metadata, check_installed
from vitkit.export.onnx_file import write_onnx
from vitkit.export.pt2 import write_program
from vitkit.export.trace import ExportInput, Predictor, trace
from vitkit.export.usage import usage
from vitkit.predict.classifier import Classifier
from vitkit.predict.samples import Samples, package_samples
from vitkit.predict.segmentation import ImageSegmenter
from vitkit.progress import Progress, no_progress

Format = Literal["onnx", "pt2"]

COMPARED, SCORED = 64, 1000  # images: to see that two files compute the same; to measure a loss of accuracy
MAX_DROP = 1.0  # points of accuracy
ROUNDS = 9  # of timing, the two files in turn


@dataclass(frozen=True)
class Int8Result:
    """The gains and the costs of int8, compared with the same model's float32 file."""

    float_bytes: int
    speed: dict[int, float]  # batch size → times as fast as float32
    kept: int  # layers that stayed in float32
    batch_effect: float  # how far a probability moves with the other images of a batch
    comparison: Comparison

    def record(self) -> dict[str, Any]:
        return {
            "float_bytes": self.float_bytes,
            "speed": self.speed,
            "kept": self.kept,
            "beside": self.batch_effect,
            "drop": self.comparison.drop,
            "drop_is": "accuracy" if self.comparison.labelled else "at most, from the predictions that changed",
        }


@dataclass(frozen=True)
class Export:
    path: Path
    bytes: int
    comparison: Comparison | MaskComparison
    metadata: dict[str, Any]  # of the file
    int8: Int8Result | None = None

    def record(self) -> dict[str, Any]:
        return {
            "file": self.path.name,
            "bytes": self.bytes,
            "preprocessing": "; ".join(self.metadata["steps"]),
            **usage(self.path.name, self.metadata),
            "comparison": self.comparison.record(),
            "int8": None if self.int8 is None else self.int8.record(),
        }


def export(
    predictor: Predictor,
    path: str | os.PathLike[str],
    *,
    to: Format = "onnx",
    input: ExportInput = "uint8",
    samples: Samples | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> Export:
    """Write `path`, and `path`.json with its usage and the comparison; a file that disagrees is not kept."""
    target, samples = _prepare(predictor, path, to, samples, overwrite)
    with replacing(target, ExportError) as temporary:
        file = _write(predictor, temporary, to, input)
        comparison = _compare(predictor, file, samples.spread(COMPARED), progress)
        _check_equal(target, comparison)
        made = Export(target, temporary.stat().st_size, comparison, file.metadata)
    return _write_record(made)


def export_int8(
    classifier: Predictor,
    path: str | os.PathLike[str],
    *,
    input: ExportInput = "uint8",
    samples: Samples | None = None,
    max_images: int = SCORED,
    max_drop: float = MAX_DROP,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> Export:
    """Write an ONNX file in int8; one that loses more than `max_drop` points of accuracy is not kept."""
    from vitkit.export.quantize import CALIBRATION_IMAGES, quantize

    if not isinstance(classifier, Classifier):
        raise ConfigError(
            "--int8 is for classifiers: what it costs is measured as accuracy, and not as mean IoU.",
            try_="the same command without --int8",
        )
    target, samples = _prepare(classifier, path, "onnx", samples, overwrite)
    with (
        replacing(target, ExportError) as temporary,
        temporary_folder(target.parent) as folder,
    ):
        float_path = folder / "float32.onnx"
        float_model = _write(classifier, float_path, "onnx", input)
        _check_equal(target, compare(classifier, float_model, samples.spread(COMPARED)))
        calibration = samples.calibration(CALIBRATION_IMAGES)
        kept = quantize(float_path, temporary, calibration, json.dumps(build_metadata(classifier, input, "int8")))
        int8_model = OnnxModel(temporary)
        comparison = compare(classifier, int8_model, samples.spread(max_images), progress)
        if not comparison.drop <= max_drop:
            enough = math.ceil(10 * comparison.drop) / 10
            raise ExportError(
                f"int8 loses {_loss(comparison)}, more than {max_drop:g}; {target} was not written.",
                try_=f"--max-drop {enough:g} if that will do, or float32, without --int8",
            )
        speed = {batch: _speedup(int8_model, float_model, [calibration[0]] * batch) for batch in (1, 8)}
        made = Export(
            target,
            temporary.stat().st_size,
            comparison,
            int8_model.metadata,
            Int8Result(float_path.stat().st_size, speed, len(kept), _batch_effect(int8_model, calibration), comparison),
        )
    return _write_record(made)


def _prepare(
    predictor: Predictor, path: str | os.PathLike[str], to: Format, samples: Samples | None, overwrite: bool
) -> tuple[Path, Samples]:
    target = Path(path)
    refuse_existing(target, overwrite)
    if to == "onnx":
        check_installed()
    return target, samples if samples is not None else package_samples(predictor.model)


def refuse_existing(target: Path, overwrite: bool) -> None:
    if os.path.isdir(target):  # unlike pathlib's, not stopped by a name that is too long
        raise ConfigError(f"{target} is a folder.", try_=f"{target / 'model.onnx'}")
    if os.path.exists(target) and not overwrite:
        raise ConfigError(f"{target} exists already; nothing was written.", try_="another name, or --overwrite")


def _write(predictor: Predictor, path: Path, to: Format, input: ExportInput) -> ExportedModel:
    """Write a file and return it, opened again from the disk."""
    program, metadata = trace(predictor, input), build_metadata(predictor, input, "float32")
    if to == "pt2":
        write_program(program, path, metadata)
        return Pt2Model(path)
    write_onnx(program, path, metadata)
    return OnnxModel(path)


def _compare(
    predictor: Predictor, file: ExportedModel, samples: Samples, progress: Progress
) -> Comparison | MaskComparison:
    if isinstance(predictor, ImageSegmenter):
        return compare_masks(predictor, file, samples, progress)
    return compare(predictor, file, samples, progress)


def _check_equal(target: Path, comparison: Comparison | MaskComparison) -> None:
    if not comparison.equal:
        raise ExportError(
            f"the exported file does not predict as the model does; {target} was not written.",
            found=comparison.description,
            allowed=comparison.allowed,
        )


def _loss(comparison: Comparison) -> str:
    if comparison.accuracy is None or comparison.file_accuracy is None:
        return (
            f"at most {comparison.drop:.2f} points of accuracy ({comparison.images - comparison.same:,} of "
            f"{comparison.images:,} predictions changed; without labels, no more is known)"
        )
    return (
        f"{comparison.drop:.2f} points of accuracy ({100 * comparison.accuracy:.2f} % to "
        f"{100 * comparison.file_accuracy:.2f} % of {comparison.labelled:,} images)"
    )


def _speedup(file: ExportedModel, other: ExportedModel, images: list[Any]) -> float:
    """Return the median ratio of times; the files take turns, so that what else the machine does slows both."""
    ratios = []
    for _ in range(ROUNDS):
        seconds = []
        for one in (file, other):
            started = time.perf_counter()
            one.probabilities(images)
            seconds.append(time.perf_counter() - started)
        ratios.append(seconds[1] / seconds[0])
    return statistics.median(ratios)


def _batch_effect(file: ExportedModel, images: list[Any]) -> float:
    """Return how far probabilities depend on the other images of a batch, whose activations share one scale."""
    height, width = (min(pixels.shape[side] for pixels in images) for side in (0, 1))
    of_one_size = [pixels[:height, :width] for pixels in images]
    one_by_one = np.concatenate([file.probabilities([pixels]) for pixels in of_one_size])
    return float(np.abs(file.probabilities(of_one_size) - one_by_one).max())


def _write_record(made: Export) -> Export:
    write_text(made.path.with_name(f"{made.path.name}.json"), json.dumps(made.record(), indent=2) + "\n", ExportError)
    return made


def summary(made: Export) -> list[str]:
    """Return lines that describe an export for people."""
    lines = [f"written    {made.path} ({made.bytes / 2**20:.1f} MiB)", f"compared   {made.comparison.description}"]
    if made.int8 is not None:
        one, several = made.int8.speed[1], made.int8.speed[8]
        lines += [
            f"accuracy   int8 loses {_loss(made.int8.comparison)}",
            f"size       {made.bytes / made.int8.float_bytes:.2f} of float32's "
            f"{made.int8.float_bytes / 2**20:.1f} MiB; {made.int8.kept} layers stayed in float32",
            f"speed      {one:.2f} times float32's with batch size 1, {several:.2f} times with 8",
            f"batches    probabilities move by up to {made.int8.batch_effect:.2f} with the other images of a batch; "
            "one image at a time, they are always the same",
        ]
    described = usage(made.path, made.metadata)
    return [
        *lines,
        f"input      {'; '.join(made.metadata['steps'])}",
        f"takes      {described['takes']}",
        f"gives      {described['gives']}",
        "use it     with these lines, which need no vitkit:",
        "",
        *described["ask"],
    ]
