"""A pass forward and back recorded as a CUDA graph, then launched as one: with a small model, launching kernels one by
one takes longer than running them. The numbers are those that it was recorded from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitkit.compute.cuda_graph import record, stream_apart
from vitkit.cost import BYTES, cost
from vitkit.devices import Precision, free_memory
from vitkit.errors import ConfigError
from vitkit.model.vit import VisionTransformer
from vitkit.train.distributed import Processes, Sharing
from vitkit.train.mixed_precision import Narrow
from vitkit.train.objectives.labels import Measured, Objective
from vitkit.train.plan import Plan

WARM_UPS = 2  # passes before: libraries choose kernels and make plans in their first, which a graph must not record
ROOM = 0.4  # of the free memory that a pass may keep: between passes, too, it is the graph's alone
LATER = 1.5  # times weights, gradients and moments, that a run takes after this: an average and a look are among it


def decide(
    asked: str, objective: Objective, plan: Plan, processes: Processes, precision: Precision, sharing: Sharing
) -> bool:
    """Wherever it can be: what is no faster for it is no slower."""
    device, model = processes.device, objective.model
    again = isinstance(model, VisionTransformer) and model.encoder.recompute
    hindered = {
        "needs a CUDA device": device.type != "cuda",
        "is for one process": sharing != "none",
        "is for batches that go through in one part": plan.accumulate > 1,
        "does not go with blocks that are gone through again, as recompute has it": again,
    }
    reasons = [reason for reason, holds in hindered.items() if holds]
    if asked == "yes" and reasons:
        raise ConfigError(f"cuda_graph = yes {reasons[0]}", try_="cuda_graph = auto")
    if asked != "auto" or reasons:
        return asked == "yes"
    found = cost(model.config)
    kept = found.activation_bytes(plan.micro, bytes_per_number=BYTES[precision])
    return kept < ROOM * (free_memory(device) - LATER * found.state_bytes)


def there_and_back(shared: nn.Module, pixels: Tensor, targets: Tensor, parts: int = 1) -> Measured:
    """Gradients are left at the weights, each a mean over `parts` of a batch."""
    loss, measures = shared(pixels, targets)
    (loss / parts).backward()
    return loss.detach(), measures


class Recorded:
    """`there_and_back`, recorded for passes of one shape. What it measured, and gradients, hold until the next one."""

    def __init__(self, shared: nn.Module, parameters: Sequence[Tensor]):
        self.shared, self.parameters = shared, parameters
        self.passes = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, pixels: Tensor, targets: Tensor) -> Measured:
        self.passes += 1
        if self.passes <= WARM_UPS:
            return there_and_back(self.shared, pixels, targets)
        if isinstance(self.shared, Narrow):
            self.shared.learning.renew()  # somebody may have changed weights that the graph reads copies of
        if self.graph is None:
            self.graph = self._record(pixels, targets)
        if (pixels.shape, targets.shape) != (self.pixels.shape, self.targets.shape):
            return there_and_back(self.shared, pixels, targets)
        self.pixels.copy_(pixels)
        self.targets.copy_(targets)
        self.graph.replay()
        for parameter, grad in zip(self.parameters, self.grads, strict=True):
            parameter.grad = grad
        return self.measured

    def _record(self, pixels: Tensor, targets: Tensor) -> torch.cuda.CUDAGraph:
        """Without a number computed, and without a random one drawn."""
        self.pixels, self.targets = pixels.clone(), targets.clone()
        for parameter in self.parameters:
            parameter.grad = None  # or the graph would add to it
        try:
            graph, self.measured = record(
                lambda: there_and_back(self.shared, self.pixels, self.targets), stream_apart(pixels.device)
            )
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # torch is in no state to go on after it
            first = "".join(str(error).strip().splitlines()[:1])[:200]
            raise ConfigError(
                "a pass of this model could not be recorded as a CUDA graph here.",
                found=first,
                try_=[
                    "--set cuda_graph=no, which launches its kernels one by one",
                    'cuda_graph = "no" in config.toml, for a run to resume',
                ],
            ) from error
        self.grads = [parameter.grad for parameter in self.parameters]
        return graph
