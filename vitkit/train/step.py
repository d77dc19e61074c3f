"""One training step: forward and backward of each micro-batch, gradient clipping, the optimizer's update.

The host never waits for the device: losses and metrics stay there until they are read.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitkit.compute.sharding import full_tensor, is_shard
from vitkit.torch_private import foreach_norm
from vitkit.train.cuda_graph import CapturedPass, forward_backward
from vitkit.train.distributed import gradient_sync
from vitkit.train.fused_adamw import FusedAdamW, can_fuse, unfuse
from vitkit.train.objectives.base import LossAndMetrics

MicroBatch = tuple[Tensor, Tensor]  # pixels and targets


@dataclass(frozen=True)
class StepResult:
    """The loss, gradient norm and metrics of a step, still on the device."""

    loss: Tensor
    norm: Tensor  # of the gradient, before clipping
    metrics: dict[str, Tensor]


class Step:
    """A callable that takes one optimizer step from `accumulate` micro-batches."""

    def __init__(
        self,
        wrapped: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        clip: float,
        accumulate: int = 1,
        captured: bool = False,
    ):
        self.wrapped = wrapped  # what `parallelize` returned
        self.optimizer = optimizer
        self.clip = clip or math.inf  # global norm; 0: no clipping, but the norm is still measured
        self.accumulate = accumulate  # micro-batches in a step
        self.parameters = [parameter for parameter in wrapped.parameters() if parameter.requires_grad]
        self.fused_adamw = (
            FusedAdamW(wrapped.trainable, optimizer) if can_fuse(wrapped, optimizer, accumulate) else None
        )
        if self.fused_adamw is None:
            unfuse(wrapped, self.parameters)
        self.captured = CapturedPass(wrapped, self.parameters) if captured else None
        # fused optimizers scale gradients as they read them, which saves a pass over all gradients
        self.optimizer_clips = self.fused_adamw is not None or (
            all(group.get("fused") for group in optimizer.param_groups) and not any(map(is_shard, self.parameters))
        )

    def __call__(self, micro_batches: Iterator[MicroBatch]) -> StepResult:
        """Take one step; each micro-batch is fetched when it is needed and released before the next."""
        losses, metrics = [], []
        for index in range(self.accumulate):
            loss, values = self._forward_backward(*next(micro_batches), last=index == self.accumulate - 1)
            losses.append(loss)
            metrics.append(values)
        norm = self._clip_and_update()
        self.optimizer.zero_grad(set_to_none=True)
        means = {name: torch.stack([values[name] for values in metrics]).mean() for name in metrics[0]}
        return StepResult(torch.stack(losses).mean(), full_tensor(norm).detach(), means)

    def _clip_and_update(self) -> Tensor:
        """Clip the gradient, take one optimizer step and return the norm before clipping."""
        if not self.optimizer_clips:
            norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
            self.optimizer.step()
            return norm
        norm = total_norm([one.grad for one in self.parameters if one.grad is not None])
        scale = ((norm + 1e-6) / self.clip).clamp(min=1.0)
        if self.fused_adamw is not None:
            self.fused_adamw(scale)
            return norm
        self.optimizer.grad_scale = None if math.isinf(self.clip) else scale  # type: ignore[attr-defined]
        self.optimizer.step()
        return norm

    def _forward_backward(self, pixels: Tensor, targets: Tensor, *, last: bool) -> LossAndMetrics:
        if self.captured is not None:
            return self.captured(pixels, targets)
        with gradient_sync(self.wrapped, last):
            return forward_backward(self.wrapped, pixels, targets, self.accumulate)


def total_norm(grads: list[Tensor]) -> Tensor:
    """Return the global L2 norm of the gradients, computed in fp32 at least."""
    if not grads:
        return torch.zeros(())
    norms = foreach_norm(grads, torch.promote_types(grads[0].dtype, torch.float32))
    return torch.linalg.vector_norm(torch.stack(norms))
