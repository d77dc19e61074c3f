"""Computing in bf16: weights live in float32, are rounded on the way into a pass, and their gradients come back in
float32.

Everything between, the residual stream too, is bf16: half the bytes of autocast, which keeps LayerNorm and the stream
in float32. The optimizer, its moments, averages and checkpoints know nothing of it. FSDP does the same by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from torch import Tensor, nn
from torch.func import functional_call

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


def _rounded(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return {name: tensor.bfloat16() if tensor.is_floating_point() else tensor for name, tensor in tensors}
