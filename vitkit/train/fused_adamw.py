"""Fused AdamW (and Adam): one kernel reads bf16 gradients, updates fp32 weights and moments, and writes the bf16 copy.

torch's fused optimizer needs fp32 gradients: they are cast before it and the weights after it, which takes as long
again. Parameter groups, state and results are those of torch's optimizer.
"""

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from vitkit.kernels.dispatch import INTERPRETED, TRITON
from vitkit.torch_private import foreach_add_, version_of, without_compiler
from vitkit.train.mixed_precision import Bf16Copies, MixedPrecision

if TRITON:
    from vitkit.kernels.adam_triton import WorkTable, adam_step, split_work

ADAMS = (torch.optim.Adam, torch.optim.AdamW, *map(without_compiler, (torch.optim.Adam, torch.optim.AdamW)))


def can_fuse(wrapped: nn.Module, optimizer: torch.optim.Optimizer, accumulate: int) -> TypeGuard[MixedPrecision]:
    """Return whether `FusedAdamW` applies; gradients that are accumulated or all-reduced have to be fp32."""
    if not (
        TRITON
        and isinstance(wrapped, MixedPrecision)
        and not wrapped.per_tensor
        and type(optimizer) in ADAMS
        and accumulate == 1
    ):
        return False
    groups = optimizer.param_groups
    parameters = [parameter for group in groups for parameter in group["params"]]
    return (
        len({(group["betas"], group["eps"]) for group in groups}) == 1
        and not any(group["amsgrad"] or group["maximize"] for group in groups)
        and len({parameter.device for parameter in parameters}) == 1
        and all((one.is_cuda or INTERPRETED) and one.dtype == torch.float32 and _is_aligned(one) for one in parameters)
    )


def unfuse(wrapped: nn.Module, parameters: Sequence[Tensor]) -> None:
    """Undo what `FusedAdamW` set: fp32 gradients again, and bf16 copies made in every forward pass."""
    for parameter in parameters:
        if parameter.grad_dtype != parameter.dtype:
            parameter.grad_dtype = parameter.dtype
    if isinstance(wrapped, MixedPrecision):
        wrapped.trainable.persistent = False


class FusedAdamW:
    """A replacement for `optimizer.step` of Adam and AdamW; it sets the gradients' dtype to bf16."""

    def __init__(self, copies: Bf16Copies, optimizer: torch.optim.Optimizer):
        self.optimizer = optimizer
        self.copies = copies
        self.copies.persistent = True
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad_dtype = torch.bfloat16
        self.step_counts: dict[
            Tensor, tuple[Tensor, int, int]
        ] = {}  # of each weight: the step tensor, its version, its value
        self.updated: list[Tensor] = []
        self.work: WorkTable | None = None  # of the updated weights

    def __call__(self, scale: Tensor) -> None:
        """Take one step with the gradients divided by `scale`."""
        groups = {
            parameter: group
            for group in self.optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        }
        updated = list(groups)
        if not updated:
            return
        if self.work is None or [id(one) for one in updated] != [id(one) for one in self.updated]:
            self.updated, self.work = updated, split_work(updated)
        states = [self._state(parameter) for parameter in updated]
        steps = self._advance_steps(updated, [state["step"] for state in states])
        tensors = [
            updated,
            [_contiguous_bf16(parameter.grad) for parameter in updated],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            self.copies.of(updated),
        ]
        addresses = self._to_device([[tensor.data_ptr() for tensor in row] for row in tensors], torch.int64)
        factors = self._to_device(_factors(list(groups.values()), steps), torch.float32)
        group = groups[updated[0]]
        adam_step(
            addresses,
            factors,
            scale,
            self.work,
            group["betas"],
            group["eps"],
            low_precision=torch.bfloat16,
            decoupled=isinstance(self.optimizer, torch.optim.AdamW),
        )
        self.copies.mark_updated(updated)

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        """Return the optimizer's state of a weight, initialised as torch's fused optimizer does."""
        state = self.optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state

    def _advance_steps(self, updated: Sequence[Tensor], steps: list[Tensor]) -> list[int]:
        """Count the step of each weight and return the counts.

        The device is only read where something else has written the counts, such as a loaded checkpoint.
        """
        known = [self.step_counts.get(parameter) for parameter in updated]
        if all(
            one is not None and one[0] is step and one[1] == version_of(step)
            for one, step in zip(known, steps, strict=True)
        ):
            counts = [one[2] + 1 for one in known if one is not None]
        else:
            counts = [int(count) + 1 for count in torch.stack(steps).tolist()]
        foreach_add_(steps, 1)
        self.step_counts |= {
            parameter: (step, version_of(step), count)
            for parameter, step, count in zip(updated, steps, counts, strict=True)
        }
        return counts

    def _to_device(self, rows: list[list[float]] | list[list[int]], dtype: torch.dtype) -> Tensor:
        """Copy rows to the device without waiting for it."""
        device = self.updated[0].device
        on_gpu = device.type == "cuda"
        return torch.tensor(rows, dtype=dtype, pin_memory=on_gpu).to(device, non_blocking=on_gpu)


def _factors(groups: list[dict[str, Any]], steps: list[int]) -> list[list[float]]:
    """Return for each weight its learning rate, weight decay and the bias corrections of its two moments."""
    corrections = [
        [1 - group["betas"][which] ** step for group, step in zip(groups, steps, strict=True)] for which in (0, 1)
    ]
    return [[group["lr"] for group in groups], [group["weight_decay"] for group in groups], *corrections]


def _contiguous_bf16(grad: Tensor) -> Tensor:
    """Return the gradient in bf16 with the memory layout of its weight."""
    grad = grad.to(torch.bfloat16).contiguous()
    return grad if _is_aligned(grad) else grad.clone()


def _is_aligned(tensor: Tensor) -> bool:
    """Return whether a kernel can read the tensor in 16-byte vectors."""
    return tensor.is_contiguous() and tensor.data_ptr() % 16 == 0
