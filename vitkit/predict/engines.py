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

from vitkit.compute import int8
from vitkit.compute.cast import Whole
from vitkit.compute.compiled import Compiled
from vitkit.compute.cuda_graph import Graphed
from vitkit.compute.fixed_batches import InSizes
from vitkit.compute.fused_vit import applies, roundable
from vitkit.compute.inference import Numbers, numbers_here, ready
from vitkit.model.vit import VisionTransformer

if TYPE_CHECKING:
    from vitkit.predict.classifier import Classifier

Compute = Callable[[Tensor], Tensor]  # (B, C, height, width) float32 on the host → (B, K) float32 on the host


@dataclass(frozen=True)
class Way:
    words: str  # "int8 matrices"
    build: Callable[[Classifier], Compute]
    slow_to_build: bool = False  # many seconds: tried where nothing else is worth it


def ways(classifier: Classifier) -> list[Way]:
    if classifier.device.type == "cuda":
        return _on_a_gpu(classifier)
    return _on_a_cpu(classifier) if classifier.device.type == "cpu" else []


def _on_a_gpu(classifier: Classifier) -> list[Way]:
    can = numbers_here(classifier.device)
    if "bf16" not in can:
        return []
    model = classifier.model
    if not isinstance(model, VisionTransformer) or not applies(model):
        return [
            Way("bf16", lambda given: _recorded(given, "bf16")),
            Way("compiled bf16", _compiled, slow_to_build=True),
        ]
    found = [Way("bf16", lambda given: _recorded(given, "bf16"))]
    if "fp8" in can and roundable(model):
        found.append(Way("fp8 matrices", lambda given: _recorded(given, "fp8")))
    return found


def _on_a_cpu(classifier: Classifier) -> list[Way]:
    can = instructions()
    found = []
    if (
        can & {"avx512_vnni", "amx_int8"}
        and hasattr(torch.ops.onednn, "qlinear_pointwise")
        and int8.applies(classifier.model)
    ):
        found.append(Way("int8 matrices", lambda given: _torch(int8.in_bytes(given.model))))
    if can & {"avx512_bf16", "amx_bf16"}:
        found.append(Way("bf16", lambda given: _torch(ready(given.model, "bf16"))))
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


def _recorded(classifier: Classifier, numbers: Numbers) -> Compute:
    return _in_sizes(classifier, Graphed(ready(classifier.model, numbers)))


def _compiled(classifier: Classifier) -> Compute:
    return _in_sizes(classifier, Compiled(Whole(classifier.model).eval()))


def _in_sizes(classifier: Classifier, model: torch.nn.Module) -> Compute:
    example = torch.zeros(1, classifier.model.config.channels, *classifier.exact.image, device=classifier.device)
    with torch.inference_mode():
        return _torch(InSizes(model, example), classifier.device)


def _onnxruntime(classifier: Classifier) -> Compute:
    from vitkit.export.metadata import describe
    from vitkit.export.onnx_file import start, write_onnx
    from vitkit.export.trace import LOGITS, PICTURES, trace

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        write_onnx(trace(classifier, "tensor"), file, describe(classifier, "tensor", "float32"))
        session: Any = start(str(file))

    def logits(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run([LOGITS], {PICTURES: images.numpy()})[0])

    return logits
