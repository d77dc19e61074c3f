"""The ways to compute a model faster that this machine and its packages have; nothing is measured here."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitkit.serve import int8
from vitkit.serve.bf16 import Bf16, Compiled

if TYPE_CHECKING:
    from vitkit.serve.predict import Classifier

Compute = Callable[[Tensor], Tensor]  # (B, C, height, width) float32 on the host → (B, K) float32 on the host


@dataclass(frozen=True)
class Way:
    words: str                               # "int8 matrices"
    build: Callable[[Classifier], Compute]
    slow_to_build: bool = False              # many seconds: tried where nothing else is worth it


def ways(classifier: Classifier) -> list[Way]:
    if classifier.device.type == "cuda":
        return _on_a_gpu(classifier.device)
    return _on_a_cpu(classifier) if classifier.device.type == "cpu" else []


def _on_a_gpu(device: torch.device) -> list[Way]:
    if torch.cuda.get_device_capability(device) < (8, 0):  # older ones have no bf16
        return []
    return [Way("bf16", lambda given: _torch(Bf16(given.model), given.device)),
            Way("compiled bf16", lambda given: _compiled(given))]


def _on_a_cpu(classifier: Classifier) -> list[Way]:
    can = instructions()
    found = []
    if can & {"avx512_vnni", "amx_int8"} and hasattr(torch.ops.onednn, "qlinear_pointwise") and int8.applies(
            classifier.model):
        found.append(Way("int8 matrices", lambda given: _torch(int8.in_bytes(given.model))))
    if can & {"avx512_bf16", "amx_bf16"}:
        found.append(Way("bf16", lambda given: _torch(Bf16(given.model))))
    if not missing_for_onnx():
        found.append(Way("onnxruntime, float32", _onnxruntime, slow_to_build=True))
    return found


def missing_for_onnx() -> list[str]:
    return [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]


def instructions() -> set[str]:
    """Those of the CPU that torch knows of, as Linux names them."""
    told = getattr(torch.cpu, "get_capabilities", None)
    if told is not None:
        return {name for name, there in told().items() if there is True}
    asked = {"avx512_vnni": "_is_vnni_supported", "avx512_bf16": "_is_avx512_bf16_supported"}  # before torch 2.12
    return {name for name, function in asked.items() if getattr(torch.cpu, function, bool)()}


def _torch(model: torch.nn.Module, device: torch.device | None = None) -> Compute:
    model.eval()

    def logits(images: Tensor) -> Tensor:
        with torch.inference_mode():
            return model(images.to(device, non_blocking=True)).float().cpu()

    return logits


def _compiled(classifier: Classifier) -> Compute:
    example = torch.zeros(1, classifier.model.config.channels, *classifier.exact.image, device=classifier.device)
    with torch.inference_mode():
        model = Compiled(Bf16(classifier.model).eval(), example)
    return _torch(model, classifier.device)


def _onnxruntime(classifier: Classifier) -> Compute:
    from vitkit.serve.export.metadata import describe
    from vitkit.serve.export.onnx_file import start, write_onnx
    from vitkit.serve.export.trace import LOGITS, PICTURES, trace

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        write_onnx(trace(classifier, "tensor"), file, describe(classifier, "tensor", "float32"))
        session: Any = start(str(file))

    def logits(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run([LOGITS], {PICTURES: images.numpy()})[0])

    return logits
