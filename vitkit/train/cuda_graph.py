"""Forward and backward captured as a CUDA graph and replayed: a small model's kernels run faster than they launch.

Losses and gradients are those of eager execution.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitkit.compute.cuda_graph import capture, capture_stream
from vitkit.cost import BYTES, cost
from vitkit.devices import TrainPrecision, free_memory
from vitkit.errors import ConfigError
from vitkit.train.activation_checkpointing import recomputes
from vitkit.train.distributed import Parallelism, Processes
from vitkit.train.mixed_precision import MixedPrecision
from vitkit.train.objectives.base import LossAndMetrics, Objective
from vitkit.train.plan import Plan

WARM_UPS = 2  # eager passes first: libraries choose kernels and allocate workspaces, which must not be captured
MEMORY_SHARE = 0.4  # of the free memory that activations may take: the graph keeps theirs between passes
# times weights, gradients and moments: what the run allocates later, such as an EMA and validation
STATE_MARGIN = 1.5


def should_capture(
    requested: str,
    objective: Objective,
    plan: Plan,
    processes: Processes,
    precision: TrainPrecision,
    parallelism: Parallelism,
) -> bool:
    """Return whether to capture: wherever possible and memory allows, for a graph is never slower."""
    device, model = processes.device, objective.model
    obstacles = {
        "needs a CUDA device": device.type != "cuda",
        "is for a single process": parallelism != "none",
        "does not go with gradient accumulation": plan.accumulate > 1,
        "does not go with this objective, for which the host reads what the model predicts": not objective.capturable,
        "does not go with activation checkpointing (recompute)": recomputes(model),
    }
    reasons = [reason for reason, holds in obstacles.items() if holds]
    if requested == "yes" and reasons:
        raise ConfigError(f"cuda_graph = yes {reasons[0]}", try_="cuda_graph = auto")
    if requested != "auto" or reasons:
        return requested == "yes"
    estimate = cost(model.config)
    activations = estimate.activation_bytes(plan.micro, bytes_per_number=BYTES[precision])
    return activations < MEMORY_SHARE * (free_memory(device) - STATE_MARGIN * estimate.state_bytes)


def forward_backward(wrapped: nn.Module, pixels: Tensor, targets: Tensor, accumulate: int = 1) -> LossAndMetrics:
    """Run forward and backward of one of `accumulate` micro-batches; gradients add up to their mean."""
    loss, metrics = wrapped(pixels, targets)
    (loss / accumulate).backward()
    return loss.detach(), metrics


class CapturedPass:
    """`forward_backward` captured for one shape; its outputs and gradients are valid until the next call."""

    def __init__(self, wrapped: nn.Module, parameters: Sequence[Tensor]):
        self.wrapped, self.parameters = wrapped, parameters
        self.passes = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, pixels: Tensor, targets: Tensor) -> LossAndMetrics:
        self.passes += 1
        if self.passes <= WARM_UPS:
            return forward_backward(self.wrapped, pixels, targets)
        if isinstance(self.wrapped, MixedPrecision):
            self.wrapped.trainable.refresh()  # the graph reads bf16 copies of weights that may have changed
        if self.graph is None:
            self.graph = self._capture(pixels, targets)
        if (pixels.shape, targets.shape) != (self.pixels.shape, self.targets.shape):
            return forward_backward(self.wrapped, pixels, targets)
        self.pixels.copy_(pixels)
        self.targets.copy_(targets)
        self.graph.replay()
        for parameter, grad in zip(self.parameters, self.grads, strict=True):
            parameter.grad = grad
        return self.output

    def _capture(self, pixels: Tensor, targets: Tensor) -> torch.cuda.CUDAGraph:
        """Capture the graph; nothing is computed and no random number drawn yet."""
        self.pixels, self.targets = pixels.clone(), targets.clone()
        for parameter in self.parameters:
            parameter.grad = None  # or the graph would accumulate into it
        try:
            graph, self.output = capture(
                lambda: forward_backward(self.wrapped, self.pixels, self.targets), capture_stream(pixels.device)
            )
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # torch cannot recover from it
            first = "".join(str(error).strip().splitlines()[:1])[:200]
            raise ConfigError(
                "forward and backward of this model could not be captured as a CUDA graph.",
                found=first,
                try_=[
                    "--set cuda_graph=no launches the kernels one by one",
                    'cuda_graph = "no" in config.toml, then vitkit resume',
                ],
            ) from error
        self.grads = [parameter.grad for parameter in self.parameters]
        return graph
