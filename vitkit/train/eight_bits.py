"""fp8 training: in forward, the qkv projection and the MLP's two products are fp8 with a scale for each row.

Backward and everything else stay as they are.
"""

from __future__ import annotations

import torch

from vitkit.compute.fused_vit import fp8_widths_fit
from vitkit.compute.inference import supported_precisions
from vitkit.devices import TrainPrecision
from vitkit.errors import ConfigError
from vitkit.kernels.dispatch import TRITON
from vitkit.kernels.fuse import FusedAttention, FusedMlp
from vitkit.model.build import Model
from vitkit.model.vit import VisionTransformer


def use_fp8(model: Model, device: torch.device, precision: TrainPrecision) -> None:
    """Switch fp8 on in the model's fused modules; raise where the device or the model does not support it."""
    if "fp8" not in supported_precisions(device) or not TRITON:
        reason = (
            "Triton is not installed" if "fp8" in supported_precisions(device) else f"{device} does not support fp8"
        )
        raise ConfigError(f"fp8 = true needs 8-bit floats and Triton: {reason}", try_="fp8 = false")
    if precision != "bf16":
        raise ConfigError("fp8 = true needs precision = bf16, but precision is fp32", try_="--precision bf16")
    if isinstance(model, VisionTransformer) and not fp8_widths_fit(model):
        raise ConfigError(
            "fp8 = true needs widths that are multiples of 16; this model's are "
            f"{model.config.width} and {model.config.mlp}",
            try_="fp8 = false",
        )
    modules = [module for module in model.modules() if isinstance(module, FusedAttention | FusedMlp)]
    if not modules:
        raise ConfigError(
            "fp8 = true is for Transformers; this model has no block that can be fused", try_="fp8 = false"
        )
    for module in modules:
        module.fp8 = True
