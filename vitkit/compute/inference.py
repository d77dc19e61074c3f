"""A model made ready for inference on a device in a precision, for evaluation, probes, prediction and benchmarks.

Shapes: B images, C channels, K classes.
"""

from typing import Literal, get_args

import torch
from torch import nn

from vitkit.compute.cast import Cast
from vitkit.compute.cuda_graph import CudaGraphModule
from vitkit.compute.fused_vit import FusedViT, fp8_widths_fit, reason_to_decline
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.model.vit import VisionTransformer

Precision = Literal["fp32", "bf16", "fp8"]


def supported_precisions(device: torch.device) -> tuple[Precision, ...]:
    """Return the precisions that the device multiplies natively."""
    if device.type != "cuda":
        return ("fp32",)
    if torch.version.hip is not None:  # ROCm numbers its capabilities differently
        return ("fp32", "bf16")
    capability = torch.cuda.get_device_capability(device)
    if capability >= (9, 0):
        return ("fp32", "bf16", "fp8")
    return ("fp32", "bf16") if capability >= (8, 0) else ("fp32",)


def check_precision(model: Model, device: torch.device, precision: Precision) -> None:
    """Raise a ConfigError where the model or the device cannot do it; bf16 works anywhere, slowly where not native."""
    if precision not in get_args(Precision):
        raise ConfigError(f"precision={precision!r} is not known", choose_from=", ".join(get_args(Precision)))
    if precision != "fp8":
        return
    if reason := reason_to_decline(model):
        raise ConfigError(f"fp8 is for plain ViTs: {reason}", try_="--precision bf16")
    if isinstance(model, VisionTransformer) and not fp8_widths_fit(model):
        sizes = f"{model.config.width} and {model.config.mlp}"
        raise ConfigError(f"fp8 needs widths that are multiples of 16; these are {sizes}", try_="--precision bf16")
    if "fp8" not in supported_precisions(device):
        known = " or ".join(supported_precisions(device))
        raise ConfigError(f"{device} does not multiply fp8", try_=f"--precision {known}")


def for_inference(model: Model, precision: Precision) -> FusedViT | Cast:
    """Return a module (B, C, height, width) → logits (B, K) in float32, on the model's device.

    Its `represent` returns the input of the logits layer. fp32 shares the model's weights; others copy them.
    """
    if precision != "fp32" and isinstance(model, VisionTransformer) and reason_to_decline(model) is None:
        return FusedViT(model, fp8=precision == "fp8").eval()
    return Cast(model, torch.float32 if precision == "fp32" else torch.bfloat16).eval()


def inference(
    model: Model, device: torch.device, precision: Precision, *, compiled: bool = False, graph: bool = False
) -> nn.Module:
    """Return `for_inference` on a device, compiled where that helps, and with `graph` replayed as a CUDA graph."""
    module = for_inference(model.to(device), precision)
    if compiled and isinstance(module, Cast):
        module.compile(dynamic=False)
    return CudaGraphModule(module) if graph and device.type == "cuda" else module
