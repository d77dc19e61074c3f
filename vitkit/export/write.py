"""A classifier → a file for other runtimes, opened again and compared with the model before it gets its name."""

from __future__ import annotations

import json
import math
import os
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitkit.atomic import replacing, write_text
from vitkit.errors import ConfigError
from vitkit.export.compare import TOLERANCE, Comparison, compare
from vitkit.export.exported import Exported
from vitkit.export.metadata import describe, usage
from vitkit.export.onnx_file import ExportError, OnnxModel, check_installed, write_onnx
from vitkit.export.pt2 import Program, write_program
from vitkit.export.trace import Input, trace
from vitkit.predict.classifier import Classifier
from vitkit.predict.samples import Samples, inside
from vitkit.progress import Progress, no_progress

Format = Literal["onnx", "pt2"]

COMPARED, SCORED = 64, 1000  # pictures: to see that two files compute the same; to tell a loss of accuracy
MAX_DROP = 1.0  # points of accuracy
ROUNDS = 9  # of timing, the two files in turn


@dataclass(frozen=True)
class Quantised:
    """What int8 is worth, beside the same model's float32 file."""

    float_bytes: int
    speed: dict[int, float]  # pictures at a time → times as fast as float32
    kept: int  # layers that stayed in float32
    beside: float  # how far a probability moves with the pictures that are asked together


@dataclass(frozen=True)
class Export:
    path: Path
    bytes: int
    comparison: Comparison
    metadata: dict[str, Any]  # what the file says of itself
    quantised: Quantised | None = None

    def record(self) -> dict[str, Any]:
        return {
            "file": self.path.name,
            "bytes": self.bytes,
            **usage(self.path.name, self.metadata),
            "comparison": self.comparison.record(),
            "int8": None
            if self.quantised is None
            else {
                **asdict(self.quantised),
                "drop": self.comparison.drop,
                "drop_is": "accuracy" if self.comparison.labelled else "at most, from the answers that changed",
            },
        }


def export(
    classifier: Classifier,
    path: str | os.PathLike[str],
    *,
    to: Format = "onnx",
    input: Input = "uint8",
    samples: Samples | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> Export:
    """Writes `path`, and `path`.json: how to ask it, what the comparison found. A file that disagrees is not kept."""
    target, samples = _prepare(classifier, path, to, samples, overwrite)
    with replacing(target, ExportError) as temporary:
        file = _write(classifier, temporary, to, input)
        found = compare(classifier, file, samples.spread(COMPARED), progress)
        _refuse_other_answers(target, found)
        made = Export(target, temporary.stat().st_size, found, file.metadata)
    return _noted(made)


def export_int8(
    classifier: Classifier,
    path: str | os.PathLike[str],
    *,
    input: Input = "uint8",
    samples: Samples | None = None,
    most: int = SCORED,
    max_drop: float = MAX_DROP,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> Export:
    """An ONNX file in int8. One that loses more than `max_drop` points of accuracy is not kept."""
    from vitkit.export.quantize import PICTURES_LOOKED_AT, quantise

    target, samples = _prepare(classifier, path, "onnx", samples, overwrite)
    with (
        replacing(target, ExportError) as temporary,
        tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder,
    ):
        plain = Path(folder) / "float32.onnx"
        exact = _write(classifier, plain, "onnx", input)
        _refuse_other_answers(target, compare(classifier, exact, samples.spread(COMPARED)))
        looked_at = samples.calibration(PICTURES_LOOKED_AT)
        kept = quantise(plain, temporary, looked_at, json.dumps(describe(classifier, input, "int8")))
        small = OnnxModel(temporary)
        found = compare(classifier, small, samples.spread(most), progress)
        if not found.drop <= max_drop:
            enough = math.ceil(10 * found.drop) / 10
            raise ExportError(
                f"int8 loses {_loss(found)}, more than {max_drop:g}; {target} was not written.",
                try_=f"--max-drop {enough:g} if that will do, or float32, without --int8",
            )
        speed = {count: _times_as_fast(small, exact, [looked_at[0]] * count) for count in (1, 8)}
        made = Export(
            target,
            temporary.stat().st_size,
            found,
            small.metadata,
            Quantised(plain.stat().st_size, speed, len(kept), _moved_by_others(small, looked_at)),
        )
    return _noted(made)


def _prepare(
    classifier: Classifier, path: str | os.PathLike[str], to: Format, samples: Samples | None, overwrite: bool
) -> tuple[Path, Samples]:
    target = Path(path)
    refuse_existing(target, overwrite)
    if to == "onnx":
        check_installed()
    return target, samples if samples is not None else inside(classifier.model)


def refuse_existing(target: Path, overwrite: bool) -> None:
    if os.path.isdir(target):  # unlike pathlib's, not stopped by a name that is too long
        raise ConfigError(f"{target} is a folder.", try_=f"{target / 'model.onnx'}")
    if os.path.exists(target) and not overwrite:
        raise ConfigError(f"{target} exists already; nothing was written.", try_="another name, or --overwrite")


def _write(classifier: Classifier, path: Path, to: Format, input: Input) -> Exported:
    """The file, opened again from the disk."""
    program, metadata = trace(classifier, input), describe(classifier, input, "float32")
    if to == "pt2":
        write_program(program, path, metadata)
        return Program(path)
    write_onnx(program, path, metadata)
    return OnnxModel(path)


def _refuse_other_answers(target: Path, found: Comparison) -> None:
    if not found.equal:
        raise ExportError(
            f"the exported file does not answer as the model does; {target} was not written.",
            found=found.words,
            allowed=f"{TOLERANCE:.0e} of a probability, and the same class first",
        )


def _loss(found: Comparison) -> str:
    if found.accuracy is None or found.file_accuracy is None:
        return (
            f"at most {found.drop:.2f} points of accuracy ({found.pictures - found.same:,} of {found.pictures:,} "
            "answers changed; there are no labels to tell more)"
        )
    return (
        f"{found.drop:.2f} points of accuracy ({100 * found.accuracy:.2f} % to {100 * found.file_accuracy:.2f} % "
        f"of {found.labelled:,} pictures)"
    )


def _times_as_fast(file: Exported, other: Exported, pictures: list[Any]) -> float:
    """In turn, so that whatever else the machine does slows both; the median of the ratios."""
    ratios = []
    for _ in range(ROUNDS):
        seconds = []
        for one in (file, other):
            started = time.perf_counter()
            one.probabilities(pictures)
            seconds.append(time.perf_counter() - started)
        ratios.append(seconds[1] / seconds[0])
    return statistics.median(ratios)


def _moved_by_others(file: Exported, pictures: list[Any]) -> float:
    """Activations of a batch share one scale, so that a picture's answer depends on what is asked beside it."""
    height, width = (min(pixels.shape[side] for pixels in pictures) for side in (0, 1))
    of_one_size = [pixels[:height, :width] for pixels in pictures]
    alone = np.concatenate([file.probabilities([pixels]) for pixels in of_one_size])
    return float(np.abs(file.probabilities(of_one_size) - alone).max())


def _noted(made: Export) -> Export:
    write_text(made.path.with_name(f"{made.path.name}.json"), json.dumps(made.record(), indent=2) + "\n", ExportError)
    return made


def words(made: Export) -> list[str]:
    """For people, a line each."""
    lines = [f"written    {made.path} ({made.bytes / 2**20:.1f} MiB)", f"compared   {made.comparison.words}"]
    if made.quantised is not None:
        one, several = made.quantised.speed[1], made.quantised.speed[8]
        lines += [
            f"accuracy   int8 loses {_loss(made.comparison)}",
            f"size       {made.bytes / made.quantised.float_bytes:.2f} of float32's "
            f"{made.quantised.float_bytes / 2**20:.1f} MiB; {made.quantised.kept} layers stayed in float32",
            f"speed      {one:.2f} times float32's one picture at a time, {several:.2f} times with 8",
            f"batches    probabilities move by up to {made.quantised.beside:.2f} with the pictures asked "
            "together; asked alone, they are always the same",
        ]
    how = usage(made.path, made.metadata)
    first, *rest = how["ask"]
    return [
        *lines,
        f"takes      {how['takes']}",
        f"gives      {how['gives']}",
        f"ask it     {first}",
        *(f"           {line}" for line in rest),
    ]
