"""A pass of training on noise, for what it costs: whether it fits, how long it takes. No weight moves."""

from __future__ import annotations

import time
from functools import partial

import torch
from torch import Tensor, nn

from vitkit.train.cuda_graph import WARM_UPS, Recorded, there_and_back
from vitkit.train.distributed import gathering
from vitkit.train.objectives.labels import Objective


def practise(computed: nn.Module, objective: Objective, micro: int, device: torch.device) -> None:
    """Forward and back; the gradients stay until `forget`."""
    with gathering(computed, True):
        there_and_back(computed, *noise(objective, micro, device))


def noise(objective: Objective, micro: int, device: torch.device) -> tuple[Tensor, Tensor]:
    config = objective.model.config
    return (
        torch.rand(micro, config.channels, *config.image, device=device),
        torch.zeros(micro, max(config.classes, 1), device=device),
    )


def forget(objective: Objective, device: torch.device) -> None:
    objective.zero_grad(set_to_none=True)
    if device.type == "cuda":
        torch.cuda.empty_cache()


def seconds_of_a_pass(
    computed: nn.Module, objective: Objective, micro: int, device: torch.device, *, recorded: bool = False
) -> float:
    """The fastest of three, after those in which libraries choose their kernels."""
    parameters = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    go = Recorded(computed, parameters) if recorded else partial(there_and_back, computed)
    times = []
    for _ in range(WARM_UPS + 3):
        given = noise(objective, micro, device)
        objective.zero_grad(set_to_none=True)
        started = time.perf_counter()
        go(*given)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    del go  # and with it the memory that only a graph may use
    forget(objective, device)
    return min(times[WARM_UPS:])
