"""Training with 8-bit products on the way forward: the projection to query, key and value, and the MLP's two, with a
scale for each row. Gradients, and everything else, are as without."""

from __future__ import annotations

import torch

from vitkit.compute.fused_vit import roundable
from vitkit.compute.inference import numbers_here
from vitkit.devices import Precision
from vitkit.errors import ConfigError
from vitkit.kernels.dispatch import TRITON
from vitkit.model.attention import SelfAttention
from vitkit.model.build import Model
from vitkit.model.encoder import Mlp
from vitkit.model.vit import VisionTransformer


def multiply_8_bits(model: Model, device: torch.device, precision: Precision) -> None:
    """Set in the model, or refused where it cannot be."""
    if "fp8" not in numbers_here(device) or not TRITON:
        lacking = "Triton is not installed" if "fp8" in numbers_here(device) else f"{device} does not multiply them"
        raise ConfigError(f"fp8 = true needs 8-bit floats and Triton: {lacking}", try_="fp8 = false")
    if precision != "bf16":
        raise ConfigError("fp8 = true rounds what is bf16 already, and precision = fp32", try_="--precision bf16")
    if isinstance(model, VisionTransformer) and not roundable(model):
        raise ConfigError(
            "fp8 = true needs widths that are multiples of 16, and these are "
            f"{model.config.width} and {model.config.mlp}",
            try_="fp8 = false",
        )
    parts = [part for part in model.modules() if isinstance(part, SelfAttention | Mlp)]
    if not parts:
        raise ConfigError("fp8 = true is for Transformers, and this model has no part of one", try_="fp8 = false")
    for part in parts:
        part.fp8 = True
