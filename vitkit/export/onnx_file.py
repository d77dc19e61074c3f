"""ONNX: a traced model as one .onnx file."""

import json
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from vitkit.compute.onnx_session import to_onnx
from vitkit.export.metadata import ExportError, task_of
from vitkit.export.trace import IMAGES, OUTPUTS, dynamic_dimensions
from vitkit.weights.native import HEADER

MAX_BYTES = 2_000_000_000  # a protobuf, and so an .onnx file, ends at 2 GiB


def write_onnx(program: ExportedProgram, path: Path, metadata: dict[str, Any]) -> None:
    import onnx

    needed = sum(tensor.numel() * tensor.element_size() for tensor in program.state_dict.values())
    if needed > MAX_BYTES:
        raise ExportError(
            f"the model has {needed / 2**30:.1f} GiB of weights; an .onnx file holds at most 2.", try_="--to pt2"
        )
    model = to_onnx(program, IMAGES, OUTPUTS[task_of(metadata)])
    _tidy(model, dynamic_dimensions(metadata["input"]))
    model.metadata_props.add(key=HEADER, value=json.dumps(metadata))
    model.doc_string = metadata["feed"]  # what viewers and runtimes show as the description
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def _tidy(model: Any, names: tuple[str, ...]) -> None:
    """Name the dynamic dimensions and remove the exporter's notes about itself and its sources."""
    [images] = model.graph.input
    symbols = {size.dim_param: name for size, name in zip(images.type.tensor_type.shape.dim, names, strict=False)}
    del model.graph.value_info[:]  # shapes of everything between; runtimes infer them
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
