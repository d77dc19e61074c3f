"""The verb that takes a model elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import arg

from vitkit.cli.options import Json, Run, at_least, cleared_up, image_size, option, print_json
from vitkit.errors import ConfigError


def export(
    run: Run,
    to: Annotated[Literal["onnx", "pt2"], arg(help="onnx: onnxruntime and others; pt2: torch.export's program")],
    out: Annotated[
        Path | None, option("the file to write; else model.onnx or model.pt2 in the run folder, or here", "FILE")
    ] = None,
    input: Annotated[
        Literal["uint8", "float32", "tensor"],
        arg(
            help="what the graph takes. uint8: pictures of bytes (batch, height, width, channels) of any size; "
            "float32: the same on 0 to 255 in floats, for pictures of 16 bits; tensor: (batch, channels, height, "
            "width) of the model's size, preprocessed by you"
        ),
    ] = "uint8",
    int8: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="onnx: matrices in bytes; smaller, faster")] = False,
    max_drop: Annotated[
        float | None, option("int8: points of accuracy that may be lost; 1 unless said", "POINTS")
    ] = None,
    data: Annotated[
        str | None, option("pictures to compare on; the run's own, where they are still there, unless said", "DATA")
    ] = None,
    pictures: Annotated[int | None, option("int8: most pictures that are scored; 1,000 unless said", "N")] = None,
    image: Annotated[
        tuple[int, ...] | None, option("image side, or height and width; the model's own unless said", "PX")
    ] = None,
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="replace FILE if it exists")] = False,
    json: Json = False,
) -> None:
    """A model as one file for other runtimes, preprocessing and class names inside; compared before it is kept.

    vitkit export runs/pets --to onnx        vitkit export runs/pets --to onnx --int8 --out small.onnx

    To ask it, elsewhere and without vitkit; the same lines for the very file are printed, and lie beside it:

        import numpy, onnxruntime; from PIL import Image, ImageOps
        picture = numpy.array(ImageOps.exif_transpose(Image.open("picture.jpg")).convert("RGB"))
        probabilities, logits = onnxruntime.InferenceSession("model.onnx").run(None, {"pictures": picture[None]})

    and of a .pt2, with torch instead of onnxruntime:

        probabilities, logits = torch.export.load("model.pt2").module()(torch.from_numpy(picture[None]))
    """
    if not int8 and (max_drop is not None or pictures is not None):
        raise ConfigError("--max-drop and --pictures are for --int8")
    if int8 and to != "onnx":
        raise ConfigError(
            "int8 is for onnx: torch has given its own quantisation to another package, torchao.",
            try_="--to onnx --int8, or --to pt2 alone",
        )
    at_least(1, pictures=pictures)
    if max_drop is not None and not max_drop >= 0:
        raise ConfigError(f"--max-drop {max_drop:g}: 0 or more is needed")
    size = None if image is None else image_size(image)
    target = out or _beside(run) / ("model.int8.onnx" if int8 else f"model.{to}")
    if target.suffix != f".{to}":
        raise ConfigError(f"--out {target}: a name that ends in .{to} is needed")

    from vitkit.export.write import MAX_DROP, SCORED, export_int8, refuse_existing, words
    from vitkit.export.write import export as export_model
    from vitkit.predict.classifier import Classifier
    from vitkit.predict.samples import find_samples
    from vitkit.progress import show_progress

    refuse_existing(target, overwrite)
    classifier = Classifier(run, device="cpu", image=size)
    samples = find_samples(run, classifier.model, data)
    print(f"exporting  {run} to {target}; tracing takes up to a minute", file=sys.stderr)
    with cleared_up():
        if int8:
            made = export_int8(
                classifier,
                target,
                input=input,
                samples=samples,
                overwrite=overwrite,
                progress=show_progress,
                most=pictures or SCORED,
                max_drop=MAX_DROP if max_drop is None else max_drop,
            )
        else:
            made = export_model(
                classifier, target, to=to, input=input, samples=samples, overwrite=overwrite, progress=show_progress
            )
    if json:
        print_json({"run": run, "to": to, "input": input, **made.record(), "file": str(made.path)})
    else:
        for line in words(made):
            print(line)


def _beside(run: str) -> Path:
    """The run folder, for a run or its model.safetensors; else here."""
    path = Path(run).expanduser()
    if path.is_dir():
        return path
    return path.parent if path.name == "model.safetensors" else Path()
