"""A pass of training on noise, for what it costs: whether it fits, how long it takes. No weight moves."""

from __future__ import annotations

import time

import torch
from torch import nn

from vitkit.train.objectives import Objective
from vitkit.train.parallel import gathering


def practise(computed: nn.Module, objective: Objective, micro: int, device: torch.device) -> None:
    """Forward and back; the gradients stay until `forget`."""
    config = objective.model.config
    pixels = torch.rand(micro, config.channels, *config.image, device=device)
    targets = torch.zeros(micro, max(config.classes, 1), device=device)
    with gathering(computed, True):
        loss, _ = computed(pixels, targets)
        loss.backward()


def forget(objective: Objective, device: torch.device) -> None:
    objective.zero_grad(set_to_none=True)
    if device.type == "cuda":
        torch.cuda.empty_cache()


def seconds_of_a_pass(computed: nn.Module, objective: Objective, micro: int, device: torch.device) -> float:
    """The fastest of three, after one in which libraries choose their kernels."""
    times = []
    for _ in range(4):
        started = time.perf_counter()
        practise(computed, objective, micro, device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    forget(objective, device)
    return min(times[1:])
