"""A step of Adam in one pass over memory, from bf16 gradients to the bf16 weights of the next pass.

torch's own wants gradients as wide as the weights: they are widened before it and the weights rounded after it, which
takes as long again. Groups, state and what comes out are torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from vitkit.kernels.dispatch import INTERPRETED, TRITON
from vitkit.train.mixed_precision import Copies, Narrow

if TRITON:
    from vitkit.kernels.adam_triton import Pieces, adam, pieces

ADAMS = (torch.optim.Adam, torch.optim.AdamW)


def suits(shared: nn.Module, optimizer: torch.optim.Optimizer, parts: int) -> TypeGuard[Narrow]:
    """Gradients of several parts add up in float32, and processes exchange them so: torch's own is for those."""
    if not (
        TRITON and isinstance(shared, Narrow) and not shared.one_by_one and type(optimizer) in ADAMS and parts == 1
    ):
        return False
    groups = optimizer.param_groups
    parameters = [parameter for group in groups for parameter in group["params"]]
    return (
        len({(group["betas"], group["eps"]) for group in groups}) == 1
        and not any(group["amsgrad"] or group["maximize"] for group in groups)
        and len({parameter.device for parameter in parameters}) == 1
        and all((one.is_cuda or INTERPRETED) and one.dtype == torch.float32 and _readable(one) for one in parameters)
    )


def leave(shared: nn.Module, parameters: Sequence[Tensor]) -> None:
    """To torch's own what was another step's: wide gradients, and weights rounded for every pass."""
    for parameter in parameters:
        if parameter.grad_dtype != parameter.dtype:
            parameter.grad_dtype = parameter.dtype
    if isinstance(shared, Narrow):
        shared.learning.kept = False


class OnePass:
    """What `optimizer.step` would do; its weights' gradients are bf16 from now on."""

    def __init__(self, copies: Copies, optimizer: torch.optim.Optimizer):
        self.optimizer = optimizer
        self.copies = copies
        self.copies.kept = True
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad_dtype = torch.bfloat16
        self.counted: dict[Tensor, tuple[Tensor, int, int]] = {}  # steps so far, as of which tensor and version
        self.moved: list[Tensor] = []
        self.pieces: Pieces | None = None  # of those

    def __call__(self, scale: Tensor) -> None:
        """Gradients are divided by `scale`."""
        groups = {
            parameter: group
            for group in self.optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        }
        moved = list(groups)
        if not moved:
            return
        if self.pieces is None or [id(one) for one in moved] != [id(one) for one in self.moved]:
            self.moved, self.pieces = moved, pieces(moved)
        states = [self._state(parameter) for parameter in moved]
        steps = self._count(moved, [state["step"] for state in states])
        tensors = [
            moved,
            [_plain(parameter.grad) for parameter in moved],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            self.copies.of(moved),
        ]
        addresses = self._sent([[tensor.data_ptr() for tensor in row] for row in tensors], torch.int64)
        rates = self._sent(_rates(list(groups.values()), steps), torch.float32)
        group = groups[moved[0]]
        adam(
            addresses,
            rates,
            scale,
            self.pieces,
            group["betas"],
            group["eps"],
            narrow=torch.bfloat16,
            decoupled=isinstance(self.optimizer, torch.optim.AdamW),
        )
        self.copies.moved(moved)

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
        if all(
            one is not None and one[0] is step and one[1] == step._version
            for one, step in zip(held, steps, strict=True)
        ):
            counts = [one[2] + 1 for one in held if one is not None]
        else:
            counts = [int(count) + 1 for count in torch.stack(steps).tolist()]
        torch._foreach_add_(steps, 1)
        self.counted |= {
            parameter: (step, step._version, count) for parameter, step, count in zip(moved, steps, counts, strict=True)
        }
        return counts

    def _sent(self, rows: list[list[float]] | list[list[int]], dtype: torch.dtype) -> Tensor:
        """On the device, without waiting for it."""
        device = self.moved[0].device
        on_gpu = device.type == "cuda"
        return torch.tensor(rows, dtype=dtype, pin_memory=on_gpu).to(device, non_blocking=on_gpu)


def _rates(groups: list[dict[str, Any]], steps: list[int]) -> list[list[float]]:
    """For each weight: its rate, its decay, and the shares that its moments have of what they will be."""
    shares = [
        [1 - group["betas"][which] ** step for group, step in zip(groups, steps, strict=True)] for which in (0, 1)
    ]
    return [[group["lr"] for group in groups], [group["weight_decay"] for group in groups], *shares]


def _plain(grad: Tensor) -> Tensor:
    """In memory as its weight is."""
    grad = grad.to(torch.bfloat16).contiguous()
    return grad if _readable(grad) else grad.clone()


def _readable(tensor: Tensor) -> bool:
    """In one piece, sixteen bytes at a time."""
    return tensor.is_contiguous() and tensor.data_ptr() % 16 == 0
