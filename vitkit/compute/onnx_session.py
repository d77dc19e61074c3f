"""A model traced by torch.export, as an ONNX model, and in a session of onnxruntime on the CPU."""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.attention import SDPBackend, sdpa_kernel

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
OPSET = 20  # the first with GELU as one operation; onnxruntime has it since 1.17, of February 2024


def missing_packages() -> list[str]:
    return [name for name in PACKAGES if find_spec(name) is None]


def trace_program(model: nn.Module, example: Tensor, dynamic: Sequence[str]) -> ExportedProgram:
    """Trace a model on the CPU without gradients; its first dimensions, which `dynamic` names, may have any size.

    The sizes of the example mean nothing, but torch.export takes 1 for a constant.
    """
    sizes = {dimension: Dim(name, min=1) for dimension, name in enumerate(dynamic)}
    with torch.no_grad(), quietly():
        return torch.export.export(model, (example,), dynamic_shapes=(sizes,), strict=False)


def to_onnx(program: ExportedProgram, input_name: str, output_names: Sequence[str]) -> Any:
    """Return the ONNX ModelProto of a traced program."""
    # the math kernel: the exporter asks twice for attention's strides, and the fused ones answer differently each time
    with quietly(), sdpa_kernel(SDPBackend.MATH):
        exported = torch.onnx.export(
            program,
            dynamo=True,
            input_names=[input_name],
            output_names=[*output_names],
            opset_version=OPSET,
            verbose=False,
        )
        assert exported is not None
        model = exported.model_proto
    _keep_zero_padding(model)
    return model


def _keep_zero_padding(model: Any) -> None:
    """Separate zero padding from the maximum pool that follows it, by an operation that changes nothing.

    onnxruntime (since pull request 18136, 1.31 included) moves the padding into the pool, which pads with minus
    infinity: BiT's first stage then has another border.
    """
    from onnx import helper, numpy_helper

    padded = {node.output[0] for node in model.graph.node if node.op_type == "Pad"}
    minimum = "least"
    for position, node in reversed(list(enumerate(model.graph.node))):
        if node.op_type == "MaxPool" and node.input[0] in padded:
            separate = f"{node.input[0]}_apart"
            separator = helper.make_node("Max", [node.input[0], minimum], [separate], name=separate)
            model.graph.node.insert(position, separator)
            model.graph.node[position + 1].input[0] = separate
    if any(minimum in node.input for node in model.graph.node):
        model.graph.initializer.append(numpy_helper.from_array(np.array(np.finfo(np.float32).min), minimum))


def start_session(model: str | bytes) -> Any:
    """Start onnxruntime with a file or its content, on the CPU, with as many threads as torch uses."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors; warnings are about its own optimisations
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence the exporters, which report their own deprecations and optional packages that are not installed."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
