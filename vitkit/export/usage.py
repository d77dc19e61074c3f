"""An exported file in a few lines of Python, for people who do not have vitkit: what it takes and gives."""

import json
from pathlib import Path
from typing import Any

from vitkit.export.metadata import EXTRA, task_of
from vitkit.export.trace import IMAGES, OUTPUTS, ExportTask
from vitkit.weights.native import HEADER

MASK = "mask.png"  # the file that the lines for a segmenter write


def usage(path: str | Path, metadata: dict[str, Any]) -> dict[str, Any]:
    """Describe the use of a file by its metadata."""
    onnx, task = Path(path).suffix == ".onnx", task_of(metadata)
    takes = metadata["feed"] + (f": {'; '.join(metadata['steps'])}" if metadata["input"] == "tensor" else "")
    return {
        "takes": takes,
        "gives": _gives(task, metadata, f'under "{HEADER}" in its metadata' if onnx else f"in its extra/{EXTRA}"),
        "ask": [
            *_image_lines(metadata, f"import json, numpy, {'onnxruntime' if onnx else 'torch'}"),
            *_run_lines(json.dumps(str(path), ensure_ascii=False), onnx, task),
            *_ANSWER_LINES[task],
        ],
    }


_ANSWER_LINES: dict[ExportTask, tuple[str, ...]] = {
    "classify": (
        "for index in probabilities[0].argsort()[::-1][:5]:",
        '    print(f"{probabilities[0][index]:.1%}  {labels[index]}")',
    ),
    "segment": (
        "mask = Image.fromarray(masks[0])  # class numbers",
        "mask.putpalette(sum(colours, []))",
        f'mask.save("{MASK}")',
        "shares = numpy.bincount(masks[0].ravel(), minlength=len(labels)) / masks[0].size",
        "for index in shares.argsort()[::-1][:5]:",
        '    print(f"{shares[index]:.1%}  {labels[index]}")',
    ),
}


def _gives(task: ExportTask, metadata: dict[str, Any], where: str) -> str:
    (first, second), classes = OUTPUTS[task], len(metadata["labels"])
    if task == "classify":
        return f"{first} and {second}, (batch, {classes}) each, in the order of the labels {where}"
    size = "{} x {}".format(*metadata["image"]) if metadata["input"] == "tensor" else "of the images' own size"
    return (
        f"{first}, (batch, height, width) uint8, {size}: the number of each pixel's class in the labels {where}, which "
        f"also has their palette; {second}, (batch, {classes}, rows, columns) float32, of the classes on the model's "
        "grid, from which the masks are upsampled"
    )


def _image_lines(metadata: dict[str, Any], modules: str) -> list[str]:
    """Return the lines that make `pixels` of one image, as vitkit's decoder does: upright, over white, all 16 bits."""
    mode = {1: "L", 3: "RGB"}.get(metadata["channels"])
    if metadata["input"] == "tensor" or mode is None:  # no few calls make these
        return [
            modules,
            *["from PIL import Image"] * (task_of(metadata) == "segment"),
            'pixels = numpy.load("image.npy")  # as the file takes it, without the batch dimension',
        ]
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


def _run_lines(name: str, onnx: bool, task: ExportTask) -> list[str]:
    """Return the lines that run a file on `pixels` and read its class names, and the colours of a segmenter's."""
    outputs = ", ".join(OUTPUTS[task])
    if onnx:
        lines = [
            f"session = onnxruntime.InferenceSession({name})",
            f'{outputs} = session.run(None, {{"{IMAGES}": pixels[None]}})',
        ]
        record = f'json.loads(session.get_modelmeta().custom_metadata_map["{HEADER}"])'
    else:
        lines = [
            f'extra = {{"{EXTRA}": ""}}',
            f"program = torch.export.load({name}, extra_files=extra).module()",
            f"{outputs} = (output.detach().numpy() for output in program(torch.from_numpy(pixels[None])))",
        ]
        record = f'json.loads(extra["{EXTRA}"])'
    if task == "segment":
        return [*lines, f"record = {record}", 'labels, colours = record["labels"], record["palette"]']
    return [*lines, f'labels = {record}["labels"]']
