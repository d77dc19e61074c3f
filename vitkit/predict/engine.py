"""What computes a trained model's logits. The exact engine is the model itself in float32: every other one, exported or
fast, is compared with it.

Shapes: B pictures, C channels, K classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vitkit.devices import describe_device
from vitkit.model.build import Model


@dataclass(frozen=True)
class Engine:
    logits: Callable[[Tensor], Tensor]  # (B, C, height, width) → (B, K), float32 on the host
    words: str  # how it computes, for people: "exact: float32 on cpu, 2 threads"
    batch: int = 64  # pictures at a time that suit it


def exact(model: Model, device: torch.device) -> Engine:
    model = model.to(device).eval()

    def logits(images: Tensor) -> Tensor:
        with torch.inference_mode():
            return model(images.to(device, non_blocking=True)).float().cpu()

    return Engine(logits, f"exact: float32 on {describe_device(device, torch.get_num_threads())}")
