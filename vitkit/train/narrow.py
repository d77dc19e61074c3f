"""Computing in bf16: weights live in float32, are rounded on the way into a pass, and their gradients come back in
float32.

Everything between, the residual stream too, is bf16: half the bytes of autocast, which keeps LayerNorm and the stream
in float32. The optimizer, its moments, averages and checkpoints know nothing of it. FSDP does the same by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.func import functional_call

from vitkit.model.build import Model
from vitkit.train.devices import Precision
from vitkit.train.objectives import Measured, Objective


class Narrow(nn.Module):
    """An objective whose model computes in bf16; losses and colours stay as precise as they are."""

    def __init__(self, objective: Objective):
        super().__init__()
        self.objective = objective

    def forward(self, pixels: Tensor, targets: Tensor) -> Measured:
        tables = ((f"model.{name}", buffer) for name, buffer in self.objective.model.named_buffers())
        return functional_call(self.objective, _rounded(chain(self.objective.named_parameters(), tables)),
                               (pixels, targets))


def ask(model: Model, images: Tensor, precision: Precision, capture: tuple[str, ...] = ()) -> tuple[
        Tensor, Mapping[str, Tensor]]:
    """A forward pass in these numbers: logits, and what was to be captured."""
    answer: Any
    if precision == "fp32":
        answer = model(images, capture)
    elif any(isinstance(part, FSDPModule) for part in model.modules()):
        answer = model(images.bfloat16(), capture)
    else:
        numbers = _rounded(chain(model.named_parameters(), model.named_buffers()))
        answer = functional_call(model, numbers, (images.bfloat16(), capture))
    return answer if capture else (answer, {})


def _rounded(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return {name: tensor.bfloat16() if tensor.is_floating_point() else tensor for name, tensor in tensors}
