"""EMA of the weights (Polyak averaging; paper, Table 2) with a constant decay, corrected for its start.

After t updates, the weights w of update k have the share d ** (t - k) · (1 - d) / (1 - d ** t) of the average, which is
Adam's correction: the shares add up to 1, and the initial weights have none. Uncorrected, they would keep d ** t, which
is 13.5 % after 20,000 steps at 0.9999. The average is kept in its corrected form, so that it can be used at any step.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitkit.compute.sharding import is_sharded
from vitkit.torch_private import foreach_lerp_


class EMA:
    """An exponential moving average of every trainable parameter; before the first update, the parameter itself."""

    def __init__(self, module: nn.Module, decay: float):
        self.decay = decay
        self.updates = 0  # that the average holds; a checkpoint records them
        self._sharded = [child for child in module.modules() if is_sharded(child)]
        self._parameters = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        self._averages = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Average in the weights after an optimizer step."""
        self.updates += 1
        share = (1 - self.decay) / (1 - self.decay**self.updates)
        foreach_lerp_([*self._averages.values()], [*self._parameters.values()], share)

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

    def _assign(self, values: dict[str, Tensor]) -> None:
        # in place, one by one: compiled graphs and sharded parameters keep their storage
        for name, parameter in self._parameters.items():
            parameter.detach().copy_(values[name])
        for child in self._sharded:
            child.reshard()  # FSDP keeps the root module's weights gathered after forward, and would reuse them
