"""The verb `export`: write a model as one file for other runtimes."""

import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import arg

from vitkit.cli.options import ImageSize, Json, at_least, image_size, option, print_json
from vitkit.cli.options import Run as RunName
from vitkit.cli.preprocessing_options import NO_OVERRIDES, Overrides
from vitkit.messages import print_line, say
from vitkit.storage.urls import redacted
from vitkit.train.signals import stop_cleanly_on_sigterm


def export(
    run: RunName,
    to: Annotated[Literal["onnx", "pt2"], arg(help="onnx: onnxruntime and others; pt2: torch.export's program")],
    out: Annotated[
        Path | None, option("the file to write; default: model.onnx or model.pt2 in the run folder, or here", "FILE")
    ] = None,
    input: Annotated[
        Literal["uint8", "float32", "tensor"],
        arg(
            help="the input of the graph. uint8: images (batch, height, width, channels) of any size in bytes; "
            "float32: the same in floats from 0 to 255, for images of 16 bits; tensor: (batch, channels, height, "
            "width) of the model's size, preprocessed by you"
        ),
    ] = "uint8",
    int8: Annotated[
        bool, tyro.conf.FlagCreatePairsOff, arg(help="onnx: quantise weights to 8 bits; smaller, faster")
    ] = False,
    max_drop: Annotated[float | None, option("int8: points of accuracy that may be lost; default: 1", "POINTS")] = None,
    data: Annotated[
        str | None, option("images to compare on; default: the run's own, where they still exist", "DATA")
    ] = None,
    images: Annotated[int | None, option("int8: most images to score; default: 1,000", "N")] = None,
    image: ImageSize = None,
    preprocessing: Overrides = NO_OVERRIDES,
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="replace FILE if it exists")] = False,
    json: Json = False,
) -> None:
    """Export a model as one file with preprocessing and class names, and compare it with the original.

    vitkit export runs/pets --to onnx        vitkit export runs/pets --to onnx --int8 --out small.onnx

    To run it without vitkit; the same lines for your file are printed, and written next to it:

        import json, numpy, onnxruntime
        from PIL import Image, ImageOps
        image = ImageOps.exif_transpose(Image.open("image.jpg"))  # upright
        if image.mode.startswith("I"):  # 16 bits of grey; vitkit also scales floats, which this does not
            pixels = (numpy.array(image)[..., None].repeat(3, axis=2) / 257).round()
        else:
            if image.has_transparency_data:  # over white
                image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
            pixels = numpy.array(image.convert("RGB"))
        pixels = pixels.astype("uint8")
        session = onnxruntime.InferenceSession("model.onnx")
        probabilities, logits = session.run(None, {"images": pixels[None]})
        labels = json.loads(session.get_modelmeta().custom_metadata_map["vitkit"])["labels"]
        for index in probabilities[0].argsort()[::-1][:5]:
            print(f"{probabilities[0][index]:.1%}  {labels[index]}")

    and a .pt2, with torch instead of onnxruntime and these lines for the session's:

        extra = {"vitkit.json": ""}
        program = torch.export.load("model.pt2", extra_files=extra).module()
        probabilities, logits = (output.detach().numpy() for output in program(torch.from_numpy(pixels[None])))
        labels = json.loads(extra["vitkit.json"])["labels"]

    A model that segments gives masks at the images' own size, and scores: the lines that are printed for its file
    write a mask as a PNG.
    """
    at_least(1, images=images)
    size = None if image is None else image_size(image)
    preprocessing.check()

    from vitkit.export.write import summary
    from vitkit.progress import show_progress
    from vitkit.python_api import Run

    asked = Run(
        run,
        image=size,
        preprocessing=asdict(preprocessing),
        device="cpu",
        progress=show_progress,
        log=partial(say, file=sys.stderr),
    )
    with stop_cleanly_on_sigterm():
        exported = asked.export(
            out,
            to=to,
            input=input,
            int8=int8,
            max_drop=max_drop,
            data=data,
            images=images,
            overwrite=overwrite,
        )
    if json:
        print_json(
            "export", {"run": redacted(run), "to": to, "input": input, **exported.record(), "file": str(exported.path)}
        )
    else:
        for line in summary(exported):
            print_line(line)
