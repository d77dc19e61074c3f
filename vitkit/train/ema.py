"""Polyak averaging: weights that trail behind those in training, smoother than any single step's (paper, Table 2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule


class EMA:
    """A moving average of every parameter that trains; frozen ones are their own average."""

    def __init__(self, module: nn.Module, decay: float):
        self.decay = decay
        self._sharded = [part for part in module.modules() if isinstance(part, FSDPModule)]
        self._parameters = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        self._averages = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After update number `step`, from 0."""
        torch._foreach_lerp_(list(self._averages.values()), list(self._parameters.values()), 1 - self._decay_at(step))

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The module has the averaged weights in here, and its own again afterwards."""
        own = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        try:
            self._put(self._averages)
            yield
        finally:
            self._put(own)

    def state(self) -> dict[str, Tensor]:
        """The averages by the names of their parameters: not copies, so that what is loaded into them counts."""
        return dict(self._averages)

    def _decay_at(self, step: int) -> float:
        # TensorFlow's warm-up: the average forgets the start of a short run too
        return min(self.decay, (1 + step) / (10 + step))

    def _put(self, values: dict[str, Tensor]) -> None:
        # in place, one by one: compiled graphs and sharded parameters keep the storage that they know
        for name, parameter in self._parameters.items():
            parameter.detach().copy_(values[name])
        for part in self._sharded:
            part.reshard()  # FSDP keeps the outermost weights gathered after a forward pass, and would use them again
