"""int8: the weight matrices of an ONNX file in bytes, activations quantized dynamically by onnxruntime.

Chosen by measurement, Ti/16 on a CPU with VNNI: static ranges lost 18 points of accuracy, 8-bit blocks were slower than
float32. What remains has one scale for an activation tensor, which a few layers of a ViT do not tolerate: after GELU,
outliers can be 200 times the other values, which then all round to zero. Those layers are detected on real images and
stay in float32; the rest then predicts as before. Preprocessing, LayerNorm, the products inside attention and softmax
have no weight matrices and are not changed.

Shapes: T rows of an activation, D in, M out.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.compute.onnx_session import quietly, start_session
from vitkit.errors import ConfigError
from vitkit.export.exported import open_exported
from vitkit.export.metadata import ExportError
from vitkit.predict.samples import Pixels
from vitkit.weights.native import HEADER

CALIBRATION_IMAGES = 16  # to detect the layers that do not tolerate int8
MAX_ERROR = 2.5  # times the median error, above which a layer stays in float32
MIN_SHARE = 0.5  # of the weights that must be in matrices for int8 to be worth anything

Layers = dict[str, tuple[str, NDArray[np.float32]]]  # name of the node → name of its input, (D, M) weights


def quantize(source: Path, target: Path, images: Sequence[Pixels], metadata: str) -> list[str]:
    """Write `target` and return the layers that stayed in float32."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic  # type: ignore[import-untyped]

    model = onnx.load(source)
    layers = _layers(model)
    _check_worth(model, layers)
    errors = _errors(source, model, layers, images)
    median = float(np.median(list(errors.values())))
    kept = [name for name, error in errors.items() if error > MAX_ERROR * median]
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
    _set_metadata(target, metadata)
    return kept


def _layers(model: Any) -> Layers:
    """Return the products with a constant matrix; the head, one operation with its bias, is none of them."""
    from onnx import numpy_helper

    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    layers = {}
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in constants:
            layers[node.name] = (node.input[0], numpy_helper.to_array(constants[node.input[1]]))
    return layers


def _check_worth(model: Any, layers: Layers) -> None:
    total = sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
    matrices = sum(weights.size for _, weights in layers.values())
    if matrices < MIN_SHARE * total:
        raise ExportError(
            f"int8 is for models of matrices: only {matrices / total:.0%} of this model's weights are in matrices, "
            "the others are in convolutions.",
            try_="the same command without --int8",
        )


def _errors(source: Path, model: Any, layers: Layers, images: Sequence[Pixels]) -> dict[str, float]:
    """Return each layer's int8 error, relative to the norm of its output rows, averaged over rows and images."""
    import onnx

    if not images:
        raise ConfigError("int8 needs images for calibration", try_="--data a folder of them")
    inputs = list(dict.fromkeys(name for name, _ in layers.values()))
    for name in inputs:
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    session = start_session(model.SerializeToString())
    file = open_exported(source)
    errors: dict[str, list[float]] = {name: [] for name in layers}
    [graph_input] = model.graph.input
    for pixels in images:
        outputs = session.run(inputs, {graph_input.name: file.prepare(pixels)[None]})
        activations = dict(zip(inputs, outputs, strict=True))
        for name, (input_name, weights) in layers.items():
            rows = activations[input_name].reshape(-1, weights.shape[0])  # (T, D)
            exact = rows @ weights  # (T, M)
            error = np.linalg.norm(_round_activations(rows) @ _round_weights(weights) - exact, axis=1)
            errors[name].append(float((error / np.maximum(np.linalg.norm(exact, axis=1), 1e-12)).mean()))
    return {name: float(np.mean(values)) for name, values in errors.items()}


def _round_activations(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round as onnxruntime rounds activations: 8 bits, one scale, zero included."""
    low, high = min(float(rows.min()), 0.0), max(float(rows.max()), 0.0)
    scale = (high - low) / 255 or 1.0
    zero = round(-low / scale)
    rounded: NDArray[np.float32] = (((rows / scale).round() + zero).clip(0, 255) - zero) * np.float32(scale)
    return rounded


def _round_weights(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round as onnxruntime rounds weights: 7 bits, a scale for each output."""
    scale = np.maximum(np.abs(weights).max(axis=0), 1e-12) / 64
    return (weights / scale).round() * scale


def _set_metadata(path: Path, metadata: str) -> None:
    """Write the metadata again, which onnxruntime's tools drop."""
    import onnx

    model = onnx.load(path)
    del model.metadata_props[:]
    model.metadata_props.add(key=HEADER, value=metadata)
    path.write_bytes(model.SerializeToString())
