"""Compile the Triton kernels of a training step in threads while images are decoded, before the first step needs them.

A pass of a few images that launches no kernel finds those that this model needs. Triton keeps compiled kernels on disk,
where later runs find them.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from vitkit.devices import TrainPrecision
from vitkit.kernels.dispatch import TRITON, KernelLaunch, collected_launches
from vitkit.train.dry_run import clear_gradients, dry_run
from vitkit.train.mixed_precision import MixedPrecision
from vitkit.train.objectives.base import Objective
from vitkit.train.prepare_gpu import wait_for_hash

THREADS = 8  # compiler and assembler release the interpreter's lock for most of their time
IMAGES = 16  # Triton compiles other kernels for numbers that are no multiples of 16


class KernelBuild:
    """The kernels of an objective's step, compiled by threads; without Triton or bf16 there are none."""

    def __init__(self, objective: Objective, micro: int, device: torch.device, precision: TrainPrecision):
        self.pool = ThreadPoolExecutor(THREADS, "vitkit-kernels")
        self.compiled: list[Future[None]] = []
        if TRITON and device.type == "cuda" and precision == "bf16":
            launches = launches_of_step(objective, min(micro, IMAGES), device)
            self.compiled = [self.pool.submit(_compile, launch, device) for launch in launches]

    def wait(self) -> None:
        """Wait for the compiler; what it could not compile is an error of the first step, which says where."""
        self.pool.shutdown()


def launches_of_step(objective: Objective, images: int, device: torch.device) -> list[KernelLaunch]:
    """Return the launches of forward and backward, each variant of a kernel once; the objective stays as it was."""
    buffers = [(buffer, buffer.clone()) for buffer in objective.buffers()]
    try:
        with collected_launches() as launches:
            dry_run(MixedPrecision(objective), objective, images, device)
    finally:
        clear_gradients(objective, device)
        with torch.no_grad():
            for buffer, before in buffers:  # running statistics of what was not computed
                buffer.copy_(before)
    return list({_variant(launch): launch for launch in launches}.values())


def _variant(launch: KernelLaunch) -> tuple[Any, ...]:
    """Return what Triton compiles a kernel for: types, constants, and which numbers are 1 or multiples of 16."""

    def kind(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.dtype
        return (value == 1, value % 16 == 0) if isinstance(value, int) else value

    options = tuple(sorted((name, str(value)) for name, value in launch.options.items()))
    return id(launch.kernel), tuple(map(kind, launch.arguments)), options


def _compile(launch: KernelLaunch, device: torch.device) -> None:
    wait_for_hash()
    with torch.cuda.device(device):
        launch.compile()
