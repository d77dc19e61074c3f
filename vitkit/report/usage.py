"""How to use a trained model: commands and Python lines that are ready to run, for the report and the end of a run."""

import shlex
from pathlib import Path


def shell_commands(run: Path, *, classifies: bool) -> list[tuple[str, str]]:
    """Return (purpose, command) pairs; a model without classes cannot predict or be scored."""
    quoted = shlex.quote(str(run))
    for_classifiers = [
        ("classify images", f"vitkit predict {quoted} IMAGES"),
        ("a web page and an HTTP API", f"vitkit serve {quoted}"),
        ("one file for other runtimes", f"vitkit export {quoted} --to onnx"),
        ("score it on other images", f"vitkit evaluate {quoted} DATA"),
    ]
    for_all = [
        ("fine-tune it on other images", f"vitkit fit DATA --weights {quoted}"),
        ("attention by layer and head, and more", f"vitkit inspect {quoted} IMAGES"),
    ]
    return [*(for_classifiers if classifies else ()), *for_all]


def python_lines(run: Path, *, classifies: bool) -> list[tuple[str, str]]:
    """Return (purpose, lines) pairs, which run one after another."""
    source = repr(str(run))
    classifier = [
        (
            "classify an image, or a list of them",
            f'classifier = vitkit.Classifier({source})\nprediction = classifier("photo.jpg")\n'
            "print(prediction.label)\nprint(prediction.top(3))",
        )
    ]
    module = [
        (
            "the torch module and its preprocessing",
            f"model = vitkit.load({source})\nprint(model.metadata.preprocessing)",
        )
    ]
    return [*(classifier if classifies else ()), *module]


def with_comments(lines: list[tuple[str, str]]) -> str:
    """Return each command below a comment with its purpose: short lines, which also fit on a phone."""
    return "\n\n".join(f"# {purpose}\n{code}" for purpose, code in lines)
