"""One step of training: each part of a batch forward and back, the gradient clipped, the weights moved.

Nothing here waits for the device: what a step measured stays there until somebody asks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from vitkit.train.cuda_graph import Recorded, there_and_back
from vitkit.train.distributed import gathering, whole
from vitkit.train.fused_adamw import OnePass, leave, suits
from vitkit.train.objectives.labels import Measured

Part = tuple[Tensor, Tensor]  # pixels and targets, as an objective takes them


@dataclass(frozen=True)
class Stepped:
    """What a step measured, still on its device."""

    loss: Tensor
    norm: Tensor  # of the gradient, before it was clipped
    measures: dict[str, Tensor]


class Step:
    def __init__(
        self,
        shared: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        clip: float,
        parts: int = 1,
        recorded: bool = False,
    ):
        self.shared = shared  # what `share` made of an objective
        self.optimizer = optimizer
        self.clip = clip or math.inf  # global norm; 0: not clipped, and still measured
        self.parts = parts  # of a batch, one after the other; their gradients add up
        self.parameters = [parameter for parameter in shared.parameters() if parameter.requires_grad]
        self.one_pass = OnePass(shared.learning, optimizer) if suits(shared, optimizer, parts) else None
        if self.one_pass is None:
            leave(shared, self.parameters)
        self.recorded = Recorded(shared, self.parameters) if recorded else None
        # fused optimizers divide gradients as they read them: a pass over all of them less than clipping them before
        self.divides = self.one_pass is not None or (
            all(group.get("fused") for group in optimizer.param_groups)
            and not any(isinstance(parameter, DTensor) for parameter in self.parameters)
        )

    def __call__(self, parts: Iterator[Part]) -> Stepped:
        """A part is asked for when its turn comes, and let go after it."""
        losses, measured = [], []
        for number in range(self.parts):
            loss, measures = self._pass(*next(parts), last=number == self.parts - 1)
            losses.append(loss)
            measured.append(measures)
        norm = self._move()
        self.optimizer.zero_grad(set_to_none=True)
        means = {name: torch.stack([one[name] for one in measured]).mean() for name in measured[0]}
        return Stepped(torch.stack(losses).mean(), whole(norm).detach(), means)

    def _move(self) -> Tensor:
        """By the gradient, scaled down to `clip` where its norm is above; that norm."""
        if not self.divides:
            norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
            self.optimizer.step()
            return norm
        norm = total_norm([one.grad for one in self.parameters if one.grad is not None])
        scale = ((norm + 1e-6) / self.clip).clamp(min=1.0)
        if self.one_pass is not None:
            self.one_pass(scale)
            return norm
        self.optimizer.grad_scale = None if math.isinf(self.clip) else scale  # type: ignore[attr-defined]
        self.optimizer.step()
        return norm

    def _pass(self, pixels: Tensor, targets: Tensor, *, last: bool) -> Measured:
        if self.recorded is not None:
            return self.recorded(pixels, targets)
        with gathering(self.shared, last):
            return there_and_back(self.shared, pixels, targets, self.parts)


def total_norm(grads: list[Tensor]) -> Tensor:
    """Of all numbers together, in float32 at least."""
    if not grads:
        return torch.zeros(())
    norms = torch._foreach_norm(grads, 2, torch.promote_types(grads[0].dtype, torch.float32))
    return torch.linalg.vector_norm(torch.stack(norms))
