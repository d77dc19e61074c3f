"""Engines compute a trained model's logits: the exact one, and faster candidates that this machine can run.

The exact engine is the model itself in float32; every other one, exported or fast, is compared with it. Of an embedding
model, the vectors take the place of the logits. Nothing is measured here.

Shapes: B images, C channels, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitkit.compute import int8
from vitkit.compute.batch_size import SMALL, inference_batch
from vitkit.compute.cast import Cast
from vitkit.compute.cuda_graph import CudaGraphModule
from vitkit.compute.fused_vit import fp8_widths_fit, reason_to_decline
from vitkit.compute.inference import Precision, for_inference, supported_precisions
from vitkit.compute.onnx_session import missing_packages, start_session, to_onnx, trace_program
from vitkit.devices import describe_device
from vitkit.model.build import Model
from vitkit.model.vit import VisionTransformer
from vitkit.torch_private import cpu_instructions, unlimited_recompiles

# (B, C, height, width) float32, anywhere → (B, K) float32 where they are computed; nobody waits for a GPU
Compute = Callable[[Tensor], Tensor]

SIZES = (1, 8, SMALL)  # of batches that are compiled or captured; others are padded to the next or split


@dataclass(frozen=True)
class Engine:
    logits: Compute
    description: str  # "exact: float32 on cpu, 2 threads"
    batch: int = SMALL  # the batch size that suits it, for many images


def exact_engine(model: Model, device: torch.device) -> Engine:
    logits = _run_torch(for_inference(model.to(device), "fp32"), device)
    description = f"exact: float32 on {describe_device(device, torch.get_num_threads())}"
    return Engine(logits, description, inference_batch(model, device))


def precise_engine(model: Model, device: torch.device, precision: Precision) -> Engine:
    """Return the engine of a precision that the user has chosen; nothing is compared."""
    if precision == "fp32":
        return exact_engine(model, device)
    logits = _run_torch(for_inference(model.to(device), precision), device)
    description = f"{precision}: on {describe_device(device, torch.get_num_threads())}"
    return Engine(logits, description, inference_batch(model, device))


@dataclass(frozen=True)
class EngineCandidate:
    description: str  # "int8 matrices"
    build: Callable[[], Compute]
    slow_to_build: bool = False  # takes many seconds, so it is tried only if nothing before it is fast enough


def engine_candidates(model: Model, device: torch.device) -> list[EngineCandidate]:
    """Return the engines that this device and the installed packages can run, in the order of trying them."""
    if device.type == "cuda":
        return _gpu_candidates(model, device)
    return _cpu_candidates(model) if device.type == "cpu" else []


def _gpu_candidates(model: Model, device: torch.device) -> list[EngineCandidate]:
    precisions = supported_precisions(device)
    if "bf16" not in precisions:
        return []
    candidates = [EngineCandidate("bf16", lambda: _captured(model, device, "bf16"))]
    if not isinstance(model, VisionTransformer) or reason_to_decline(model) is not None:
        candidates.append(EngineCandidate("compiled bf16", lambda: _compiled(model, device), slow_to_build=True))
    elif "fp8" in precisions and fp8_widths_fit(model):
        candidates.append(EngineCandidate("fp8 matrices", lambda: _captured(model, device, "fp8")))
    return candidates


def _cpu_candidates(model: Model) -> list[EngineCandidate]:
    instructions, candidates = cpu_instructions(), []
    bf16 = bool(instructions & {"avx512_bf16", "amx_bf16"})
    if instructions & {"avx512_vnni", "amx_int8"} and int8.reason_to_decline(model) is None:
        candidates.append(EngineCandidate("int8 matrices", lambda: _int8(model)))
        if bf16:
            candidates.append(
                EngineCandidate("int8 matrices, bf16 attention", lambda: _int8(model, bf16_attention=True))
            )
    if bf16:
        candidates.append(EngineCandidate("bf16", lambda: _run_torch(for_inference(model, "bf16"))))
    if not missing_packages():
        candidates.append(EngineCandidate("onnxruntime, float32", lambda: _onnxruntime(model), slow_to_build=True))
    return candidates


def _int8(model: Model, *, bf16_attention: bool = False) -> Compute:
    return _run_torch(int8.quantize_blocks(model, bf16_attention=bf16_attention))


def _run_torch(model: nn.Module, device: torch.device | None = None) -> Compute:
    model.eval()

    def logits(images: Tensor) -> Tensor:
        with torch.inference_mode():
            outputs: Tensor = model(images.to(device, non_blocking=True)).float()
            return outputs

    return logits


def _captured(model: Model, device: torch.device, precision: Precision) -> Compute:
    sizes = sorted({*SIZES, inference_batch(model, device)})
    return _in_fixed_batches(CudaGraphModule(for_inference(model, precision)), model, device, tuple(sizes))


def _compiled(model: Model, device: torch.device) -> Compute:
    return _in_fixed_batches(CompiledModel(Cast(model).eval()), model, device)


def _in_fixed_batches(
    computing: nn.Module, model: Model, device: torch.device, sizes: tuple[int, ...] = SIZES
) -> Compute:
    example = torch.zeros(1, model.config.channels, *model.config.image, device=device)
    with torch.inference_mode():
        return _run_torch(PaddedBatches(computing, example, sizes), device)


class PaddedBatches(nn.Module):
    """A model that sees batches of a few sizes only, which it compiles or captures before the first call."""

    def __init__(self, model: nn.Module, example: Tensor, sizes: tuple[int, ...] = SIZES) -> None:
        """Run the model once for each size; `example` is a batch of one image."""
        super().__init__()
        self.model, self.sizes = model, sizes
        for size in sizes:
            self(example[:1].expand(size, -1, -1, -1).contiguous())

    def forward(self, images: Tensor) -> Tensor:
        complete = len(images) - len(images) % self.sizes[-1]
        # what remains is not padded to the largest size, which would cost as much as a complete batch
        batches = (*images[:complete].split(self.sizes[-1]), *images[complete:].split(SIZES[-1]))
        return torch.cat([self._padded(batch) for batch in batches if len(batch) or not len(images)])

    def _padded(self, images: Tensor) -> Tensor:
        count = len(images)
        size = next(size for size in self.sizes if size >= count)
        if size > count:
            images = torch.cat([images, images.new_zeros(size - count, *images.shape[1:])])
        logits: Tensor = self.model(images)
        return logits[:count]


class CompiledModel(nn.Module):
    """A model compiled by torch, anew for each batch size."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.compiled = torch.compile(model, dynamic=False, fullgraph=True)

    def forward(self, images: Tensor) -> Tensor:
        with unlimited_recompiles():
            logits: Tensor = self.compiled(images)
        return logits


def _onnxruntime(model: Model) -> Compute:
    example = torch.zeros(2, model.config.channels, *model.config.image)
    program = trace_program(for_inference(model, "fp32"), example, ["batch"])
    session = start_session(to_onnx(program, "images", ["logits"]).SerializeToString())

    def logits(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])

    return logits
