"""ONNX: a traced classifier as one .onnx file, and such a file asked through onnxruntime.

Shapes: B pictures, K classes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitkit.errors import VitkitError, WeightsError
from vitkit.export.exported import Exported
from vitkit.export.trace import LOGITS, PICTURES, PROBABILITIES, quietly
from vitkit.weights.native import HEADER

OPSET = 20  # the first with GELU as one operation; onnxruntime has it since 1.17, of February 2024
LARGEST = 2_000_000_000  # bytes: a protobuf, and so an .onnx file, ends at 2 GiB


class ExportError(VitkitError):
    """A file that cannot be written as asked, or that does not answer as its model does."""


def check_installed() -> None:
    missing = []
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(name)
        except ImportError:
            missing.append(name)
    if missing:
        raise ExportError(f"ONNX needs {', '.join(missing)}.", try_='pip install "vitkit[export]", or --to pt2')


def write_onnx(program: ExportedProgram, path: Path, metadata: dict[str, Any]) -> None:
    import onnx

    needed = sum(tensor.numel() * tensor.element_size() for tensor in program.state_dict.values())
    if needed > LARGEST:
        raise ExportError(
            f"the model has {needed / 2**30:.1f} GiB of weights; an .onnx file ends at 2.", try_="--to pt2"
        )
    # the plain kernel: the exporter asks twice for attention's strides, and the fused ones answer otherwise each time
    with quietly(), sdpa_kernel(SDPBackend.MATH):
        made = torch.onnx.export(
            program,
            dynamo=True,
            input_names=[PICTURES],
            output_names=[PROBABILITIES, LOGITS],
            opset_version=OPSET,
            verbose=False,
        )
        assert made is not None
        model = made.model_proto
    names = ("batch",) if metadata["input"] == "tensor" else ("batch", "height", "width")
    _tidy(model, names)
    _keep_zero_padding(model)
    model.metadata_props.add(key=HEADER, value=json.dumps(metadata))
    model.doc_string = metadata["feed"]  # what viewers and runtimes show as the description
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def _tidy(model: Any, names: tuple[str, ...]) -> None:
    """Sizes get names that mean something; what the exporter noted about itself and its sources goes."""
    [pictures] = model.graph.input
    symbols = {size.dim_param: name for size, name in zip(pictures.type.tensor_type.shape.dim, names, strict=False)}
    del model.graph.value_info[:]  # shapes of everything between; runtimes find them again
    for value in (*model.graph.input, *model.graph.output):
        del value.metadata_props[:]
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:
                size.dim_param = symbols.get(size.dim_param, size.dim_param)
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for weight in model.graph.initializer:
        del weight.metadata_props[:]
    del model.metadata_props[:], model.graph.metadata_props[:]
    model.doc_string = model.graph.doc_string = ""


def _keep_zero_padding(model: Any) -> None:
    """onnxruntime (since pull request 18136, 1.31 included) moves zeros that are padded before a maximum pool into the
    pool, which pads with minus infinity: BiT's first stage then sees another border. An operation between the two,
    which changes nothing, keeps them apart.
    """
    from onnx import helper, numpy_helper

    padded = {node.output[0] for node in model.graph.node if node.op_type == "Pad"}
    least = "least"
    for place, node in reversed(list(enumerate(model.graph.node))):
        if node.op_type == "MaxPool" and node.input[0] in padded:
            apart = f"{node.input[0]}_apart"
            model.graph.node.insert(place, helper.make_node("Max", [node.input[0], least], [apart], name=apart))
            model.graph.node[place + 1].input[0] = apart
    if any(least in node.input for node in model.graph.node):
        model.graph.initializer.append(numpy_helper.from_array(np.array(np.finfo(np.float32).min), least))


def metadata_of(path: Path) -> dict[str, str]:
    check_installed()
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
    except OSError:
        raise
    except Exception as error:  # protobuf's, which comes without types
        raise WeightsError(f"{path} is neither an ONNX file nor a .pt2.") from error
    return {entry.key: entry.value for entry in model.metadata_props}


def start(model: str | bytes) -> Any:
    """onnxruntime's session of a file or its content, on the CPU, with as many threads as torch would take."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors; warnings are about its own optimisations
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class OnnxModel(Exported):
    def __init__(self, path: str | Path):
        super().__init__(path)
        try:
            self.session = start(str(path))
        except Exception as error:  # its own kinds, which have no common parent
            raise WeightsError(f"{path} is no file that onnxruntime can load: {error}") from error

    def run(self, pictures: NDArray[Any]) -> NDArray[np.float32]:
        probabilities: NDArray[np.float32] = self.session.run([PROBABILITIES], {PICTURES: pictures})[0]
        return probabilities
