"""int8: the matrices of an ONNX file in bytes, activations in bytes as they come (onnxruntime's dynamic quantisation).

Chosen by measurement, Ti/16 on a CPU with VNNI: static ranges lost 18 points of accuracy, 8-bit blocks were slower than
float32. What remains is one scale for a whole activation, which a few layers of a ViT cannot bear: after GELU, single
numbers can be 200 times the others, which then all round to nothing. Those layers are found on real pictures and stay
in float32; the rest then answers as before. Preprocessing, LayerNorm, attention's own products and softmax are no
matrices of weights, and are not touched.

Shapes: T rows of an activation, D in, M out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.errors import ConfigError
from vitkit.export.exported import open_exported
from vitkit.export.onnx_file import ExportError, start
from vitkit.export.trace import PICTURES, quietly
from vitkit.predict.samples import Pixels
from vitkit.weights.native import HEADER

PICTURES_LOOKED_AT = 16  # to find the layers that cannot bear it
WORSE = 2.5  # times the usual error, from which a layer stays in float32
LEAST = 0.5  # share of the weights that must be in matrices for int8 to be worth anything


def quantise(source: Path, target: Path, pictures: Sequence[Pixels], metadata: str) -> list[str]:
    """Writes `target`; returns the layers that stayed in float32."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic  # type: ignore[import-untyped]

    model = onnx.load(source)
    layers = _layers(model)
    _check_worth(model, layers)
    errors = _errors(source, model, layers, pictures)
    usual = float(np.median(list(errors.values())))
    kept = [name for name, error in errors.items() if error > WORSE * usual]
    with quietly():
        # 7 bits for weights: a byte times 8 bits overflows the 16-bit sums of CPUs without VNNI, silently
        quantize_dynamic(
            source,
            target,
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            nodes_to_quantize=[name for name in layers if name not in kept],
        )
    _describe(target, metadata)
    return kept


def _layers(model: Any) -> dict[str, tuple[str, NDArray[np.float32]]]:
    """Products with a constant matrix: name of the node → name of what comes in, (D, M) weights.

    The head is none of them: with its bias it is one operation, which stays as it is.
    """
    from onnx import numpy_helper

    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in constants:
            found[node.name] = (node.input[0], numpy_helper.to_array(constants[node.input[1]]))
    return found


def _check_worth(model: Any, layers: dict[str, tuple[str, NDArray[np.float32]]]) -> None:
    everything = sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
    matrices = sum(weights.size for _, weights in layers.values())
    if matrices < LEAST * everything:
        raise ExportError(
            f"int8 is for models of matrices: {matrices / everything:.0%} of this one's weights are, "
            "the others are convolutions.",
            try_="the same command without --int8",
        )


def _errors(
    source: Path, model: Any, layers: dict[str, tuple[str, NDArray[np.float32]]], pictures: Sequence[Pixels]
) -> dict[str, float]:
    """How far int8 moves each layer's rows, relative to their length, averaged over rows and pictures."""
    import onnx

    if not pictures:
        raise ConfigError("int8 needs pictures to look at", try_="--data a folder of them")
    inputs = list(dict.fromkeys(name for name, _ in layers.values()))
    for name in inputs:
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    session = start(model.SerializeToString())
    file = open_exported(source)
    errors: dict[str, list[float]] = {name: [] for name in layers}
    for pixels in pictures:
        activations = dict(zip(inputs, session.run(inputs, {PICTURES: file.ready(pixels)[None]}), strict=True))
        for name, (given, weights) in layers.items():
            rows = activations[given].reshape(-1, weights.shape[0])  # (T, D)
            truth = rows @ weights  # (T, M)
            moved = np.linalg.norm(_in_bytes(rows) @ _in_7_bits(weights) - truth, axis=1)
            errors[name].append(float((moved / np.maximum(np.linalg.norm(truth, axis=1), 1e-12)).mean()))
    return {name: float(np.mean(values)) for name, values in errors.items()}


def _in_bytes(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounded as onnxruntime rounds activations: one scale, zero included."""
    low, high = min(float(rows.min()), 0.0), max(float(rows.max()), 0.0)
    scale = (high - low) / 255 or 1.0
    zero = round(-low / scale)
    rounded: NDArray[np.float32] = (((rows / scale).round() + zero).clip(0, 255) - zero) * np.float32(scale)
    return rounded


def _in_7_bits(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounded as it rounds weights: a scale for each output."""
    scale = np.maximum(np.abs(weights).max(axis=0), 1e-12) / 64
    return (weights / scale).round() * scale


def _describe(path: Path, metadata: str) -> None:
    """onnxruntime's tools drop what they do not know."""
    import onnx

    model = onnx.load(path)
    del model.metadata_props[:]
    model.metadata_props.add(key=HEADER, value=metadata)
    path.write_bytes(model.SerializeToString())
