"""EMA of the weights (Polyak averaging; paper, Table 2)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from vitkit.torch_private import foreach_lerp_


class EMA:
    """An exponential moving average of every trainable parameter."""

    def __init__(self, module: nn.Module, decay: float):
        self.decay = decay
        self._sharded = [child for child in module.modules() if isinstance(child, FSDPModule)]
        self._parameters = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        self._averages = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Average in the weights after optimizer step `step`, counted from 0."""
        foreach_lerp_([*self._averages.values()], [*self._parameters.values()], 1 - self._decay_at(step))

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Put the averaged weights into the module inside the context, and its own back afterwards."""
        own = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        try:
            self._assign(self._averages)
            yield
        finally:
            self._assign(own)

    def state(self) -> dict[str, Tensor]:
        """Return the averages by parameter name; not copies, so that a checkpoint can be loaded into them."""
        return dict(self._averages)

    def _decay_at(self, step: int) -> float:
        # TensorFlow's warm-up of the decay: a short run's average forgets the initial weights, too
        return min(self.decay, (1 + step) / (10 + step))

    def _assign(self, values: dict[str, Tensor]) -> None:
        # in place, one by one: compiled graphs and sharded parameters keep their storage
        for name, parameter in self._parameters.items():
            parameter.detach().copy_(values[name])
        for child in self._sharded:
            child.reshard()  # FSDP keeps the root module's weights gathered after forward, and would reuse them
