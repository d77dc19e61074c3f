"""A step of Adam in one pass over memory, from bf16 gradients to the bf16 weights of the next pass.

torch's own wants gradients as wide as the weights: they are widened before it and the weights rounded after it, which
takes half as long again. Groups, state and what comes out are torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from vitkit.kernels.here import INTERPRETED, TRITON
from vitkit.train.narrow import Copies, Narrow

if TRITON:
    from vitkit.kernels.adam_triton import adam, pieces

ADAMS = (torch.optim.Adam, torch.optim.AdamW)


def suits(shared: nn.Module, optimizer: torch.optim.Optimizer, parts: int) -> TypeGuard[Narrow]:
    """Gradients of several parts add up in float32, and processes exchange them so: torch's own is for those."""
    if not (TRITON and isinstance(shared, Narrow) and type(optimizer) in ADAMS and parts == 1
            and hasattr(torch.Tensor, "grad_dtype")):
        return False
    groups = optimizer.param_groups
    parameters = [parameter for group in groups for parameter in group["params"]]
    return (len({(group["betas"], group["eps"]) for group in groups}) == 1
            and not any(group["amsgrad"] or group["maximize"] for group in groups)
            and len({parameter.device for parameter in parameters}) == 1
            and all((one.is_cuda or INTERPRETED) and one.dtype == torch.float32 and one.is_contiguous()
                    for one in parameters))


class OnePass:
    """What `optimizer.step` would do; its weights' gradients are bf16 from now on."""

    def __init__(self, copies: Copies, optimizer: torch.optim.Optimizer):
        self.optimizer = optimizer
        self.copies = copies
        self.copies.moved_along = True
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad_dtype = torch.bfloat16
        self.counted: dict[Tensor, tuple[Tensor, int, int]] = {}  # steps so far, as of which tensor and version
        self.moved: list[Tensor] = []

    def __call__(self, scale: Tensor) -> None:
        """Gradients are divided by `scale`."""
        groups = {parameter: group for group in self.optimizer.param_groups for parameter in group["params"]
                  if parameter.grad is not None}
        moved = list(groups)
        if not moved:
            return
        if len(moved) != len(self.moved) or any(one is not other for one, other in zip(moved, self.moved, strict=True)):
            self.moved, self.divided = moved, pieces(moved)
        copies = {id(of): copy for of, copy in zip(self.copies.of, self.copies.narrow, strict=True)}
        grads = [_plain(parameter.grad) for parameter in moved]
        states = [self._state(parameter) for parameter in moved]
        steps = self._count(moved, [state["step"] for state in states])
        group = groups[moved[0]]
        held = [moved, grads, [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states],
                [copies[id(parameter)] for parameter in moved]]
        addresses = self._sent([[tensor.data_ptr() for tensor in row] for row in held], torch.int64)
        rates = self._sent(_rates(list(groups.values()), steps), torch.float32)
        adam(addresses, rates, scale, self.divided, group["betas"], group["eps"], narrow=torch.bfloat16,
             decoupled=isinstance(self.optimizer, torch.optim.AdamW))

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        """As torch's fused optimizer begins."""
        state = self.optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state

    def _count(self, moved: Sequence[Tensor], steps: list[Tensor]) -> list[int]:
        """The number of this step for each weight. Known here without asking the device, unless somebody else has
        written it there: a checkpoint was loaded."""
        held = [self.counted.get(parameter) for parameter in moved]
        if all(one is not None and one[0] is step and one[1] == step._version
               for one, step in zip(held, steps, strict=True)):
            counts = [one[2] + 1 for one in held if one is not None]
        else:
            counts = [int(count) + 1 for count in torch.stack(steps).tolist()]
        torch._foreach_add_(steps, 1)
        self.counted |= {parameter: (step, step._version, count)
                         for parameter, step, count in zip(moved, steps, counts, strict=True)}
        return counts

    def _sent(self, rows: list[list[float]] | list[list[int]], dtype: torch.dtype) -> Tensor:
        """On the device, without waiting for it."""
        device = self.moved[0].device
        on_gpu = device.type == "cuda"
        return torch.tensor(rows, dtype=dtype, pin_memory=on_gpu).to(device, non_blocking=on_gpu)


def _rates(groups: list[dict[str, Any]], steps: list[int]) -> list[list[float]]:
    """For each weight: its rate, its decay, and the shares that its moments have of what they will be."""
    shares = [[1 - group["betas"][which] ** step for group, step in zip(groups, steps, strict=True)]
              for which in (0, 1)]
    return [[group["lr"] for group in groups], [group["weight_decay"] for group in groups], *shares]


def _plain(grad: Tensor) -> Tensor:
    """In memory as its weight is, from where sixteen bytes can be read at once."""
    grad = grad.to(torch.bfloat16).contiguous()
    return grad if grad.data_ptr() % 16 == 0 else grad.clone()
