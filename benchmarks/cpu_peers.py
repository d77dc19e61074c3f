"""Other CPU runtimes for `benchmarks/fast.py --peers`: onnxruntime in int8, OpenVINO in float32 and bf16.

A runtime that is not installed, or fails, becomes a reason instead of a function. onnxruntime in float32 is one of the
candidates of `--fast` itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from vitkit.compute.inference import for_inference
from vitkit.compute.onnx_session import missing_packages, quietly, start_session, to_onnx, trace_program
from vitkit.model.build import Model
from vitkit.predict.engines import Compute


def cpu_peers(model: Model) -> tuple[dict[str, Compute], dict[str, str]]:
    """Return the peers that run a model on this machine, and the reasons of the others."""
    builders: dict[str, Callable[[bytes], Compute]] = {
        "onnxruntime, int8 (dynamic, 7-bit weights)": _onnxruntime_int8,
        "OpenVINO, float32": lambda onnx: _openvino(onnx, "f32"),
        "OpenVINO, bf16": lambda onnx: _openvino(onnx, "bf16"),
    }
    if missing := missing_packages():
        return {}, dict.fromkeys(builders, f"{' and '.join(missing)} not installed")
    example = torch.zeros(2, model.config.channels, *model.config.image)
    program = trace_program(for_inference(model, "fp32"), example, ["batch"])
    graph = to_onnx(program, "images", ["logits"])
    # onnxruntime's quantizer turns the head's Gemm into a MatMul and then stumbles over the old shapes of its weights
    del graph.graph.value_info[:]
    onnx = graph.SerializeToString()
    computes, reasons = {}, {}
    for name, build in builders.items():
        try:
            computes[name] = build(onnx)
        except Exception as error:  # runtimes raise classes of their own
            reasons[name] = str(error).splitlines()[0] if str(error) else type(error).__name__
    return computes, reasons


def _onnxruntime_int8(onnx: bytes) -> Compute:
    from onnxruntime.quantization import QuantType, quantize_dynamic  # type: ignore[import-untyped]

    with tempfile.TemporaryDirectory() as folder, quietly():
        source, target = Path(folder) / "float32.onnx", Path(folder) / "int8.onnx"
        source.write_bytes(onnx)
        # as `vitkit export --int8`, which also keeps in float32 the layers that lose accuracy
        quantize_dynamic(
            source,
            target,
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=["MatMul"],
        )
        session = start_session(target.read_bytes())

    def logits(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])

    return logits


def _openvino(onnx: bytes, precision: str) -> Compute:
    if find_spec("openvino") is None:
        raise ModuleNotFoundError("openvino not installed")
    import openvino  # type: ignore[import-not-found]

    core = openvino.Core()
    options = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = core.compile_model(core.read_model(onnx), "CPU", options)

    def logits(images: Tensor) -> Tensor:
        return torch.from_numpy(compiled(images.numpy())[0].copy())

    return logits
