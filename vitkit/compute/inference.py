"""A model made ready to answer on a device, in the numbers asked for: the way in which evaluating, probing, predicting
and benchmarks compute.

Shapes: B pictures, C channels, K classes.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from vitkit.compute.cast import Whole
from vitkit.compute.cuda_graph import Graphed
from vitkit.compute.fused_vit import Quick, applies, roundable
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.model.vit import VisionTransformer

Numbers = Literal["fp32", "bf16", "fp8"]


def numbers_here(device: torch.device) -> tuple[Numbers, ...]:
    """Those that the device multiplies natively."""
    if device.type != "cuda":
        return ("fp32",)
    if torch.version.hip is not None:  # whose numbers of abilities mean something else
        return ("fp32", "bf16")
    ability = torch.cuda.get_device_capability(device)
    if ability >= (9, 0):
        return ("fp32", "bf16", "fp8")
    return ("fp32", "bf16") if ability >= (8, 0) else ("fp32",)


def check_numbers(model: Model, device: torch.device, numbers: Numbers) -> None:
    """fp8 is for plain ViTs on devices that multiply it; bf16 can be had anywhere, if slowly where it is not native."""
    if numbers != "fp8":
        return
    if not isinstance(model, VisionTransformer) or not applies(model):
        raise ConfigError("fp8 is for plain ViTs, and this model is another", try_="--precision bf16")
    if not roundable(model):
        raise ConfigError(
            "fp8 products need widths that are multiples of 16, and these are "
            f"{model.config.width} and {model.config.mlp}",
            try_="--precision bf16",
        )
    if "fp8" not in numbers_here(device):
        raise ConfigError(
            f"{device} does not multiply fp8 numbers", try_=f"--precision {' or '.join(numbers_here(device))}"
        )


def ready(model: Model, numbers: Numbers) -> Quick | Whole:
    """A module of its own but for float32, where the model is now: pictures (B, C, height, width) → logits (B, K) in
    float32. `represent` gives what stands before the logits."""
    if numbers == "fp32":
        return Whole(model, torch.float32).eval()
    if isinstance(model, VisionTransformer) and applies(model):
        return Quick(model, rounded=numbers == "fp8").eval()
    return Whole(model).eval()


def inference(
    model: Model, device: torch.device, numbers: Numbers, *, compiled: bool = False, graph: bool = False
) -> nn.Module:
    """`ready` on a device. Plain ViTs need no compiling: they are laid out by hand. `graph` replays what was recorded
    with the first batch of a size, where launching kernels would take longer than running them."""
    quick = ready(model.to(device), numbers)
    if compiled and isinstance(quick, Whole):
        quick.compile(dynamic=False)
    return Graphed(quick) if graph and device.type == "cuda" else quick
