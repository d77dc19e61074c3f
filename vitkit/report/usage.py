"""Commands and Python lines that use a trained model, ready to run: for the report and the end of a run."""

import shlex
from pathlib import Path


def shell_commands(run: Path, *, classifies: bool, masks: bool = False) -> list[tuple[str, str]]:
    """Return (purpose, command) pairs; a model without classes cannot predict or be scored.

    `masks` says that the classes are those of pixels.
    """
    quoted = shlex.quote(str(run))
    predict = (
        ("a mask for each image", f"vitkit predict {quoted} IMAGES --out masks")
        if masks
        else ("classify images", f"vitkit predict {quoted} IMAGES")
    )
    for_classifiers = [
        predict,
        ("a web page and an HTTP API", f"vitkit serve {quoted}"),
        ("one file for other runtimes", f"vitkit export {quoted} --to onnx"),
        ("score it on other images", f"vitkit evaluate {quoted} DATA"),
    ]
    for_all = [
        ("fine-tune it on other images", f"vitkit fit DATA --weights {quoted}"),
        ("attention by layer and head, and more", f"vitkit inspect {quoted} IMAGES"),
    ]
    return [*(for_classifiers if classifies else ()), *for_all]


def python_lines(run: Path, *, classifies: bool, masks: bool = False) -> list[tuple[str, str]]:
    """Return (purpose, lines) pairs, which run one after another."""
    source = repr(str(run))
    classifier = [
        (
            "classify an image, or a list of them",
            f'classifier = vitkit.Classifier({source})\nprediction = classifier("photo.jpg")\n'
            "print(prediction.label)\nprint(prediction.top(3))",
        )
    ]
    segmenter = [
        (
            "segment an image, or a list of them",
            f'segmenter = vitkit.ImageSegmenter({source})\nsegmented = segmenter("photo.jpg")\n'
            'print(segmented.shares)\nsegmented.save("mask.png")',
        )
    ]
    module = [
        (
            "the torch module and its preprocessing",
            f"model = vitkit.load({source})\nprint(model.metadata.preprocessing)",
        )
    ]
    return [*((segmenter if masks else classifier) if classifies else ()), *module]


def with_comments(lines: list[tuple[str, str]]) -> str:
    """Return each command below a comment with its purpose: short lines, which also fit on a phone."""
    return "\n\n".join(f"# {purpose}\n{code}" for purpose, code in lines)
