"""Whether fused kernels can be used, and how they are launched: Triton compiles them, for GPUs; its interpreter runs
them anywhere, for tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_known: dict[int | None, bool] = {}  # devices, and whether they multiply bf16


def _triton() -> bool:
    """Asked without waking the driver: a process that only reads pictures has no use for it."""
    if not INTERPRETED and torch.version.cuda is None:
        return False
    try:
        import_module("triton")
    except Exception:  # not there, or not fit for this machine
        return False
    return True


TRITON = _triton()


def fusable(x: Tensor) -> bool:
    """bf16 on a GPU. Float32 is for exact answers, which come from torch's own kernels."""
    return TRITON and ((x.is_cuda and x.dtype == torch.bfloat16 and has_bf16(x.device)) or INTERPRETED)


def has_bf16(device: torch.device) -> bool:
    """Whether a CUDA device multiplies bf16 natively. A compiled graph cannot ask; it knows what was asked before."""
    if not torch.compiler.is_compiling() and device.index not in _known:
        _known[device.index] = torch.cuda.get_device_capability(device) >= (8, 0)
    return _known.get(device.index, True)


def direct(kernel: Any) -> Any:
    """A kernel as it is launched where nothing is compiled; inside an operator, `torch.library.wrap_triton` is."""
    return _Direct(kernel)


class _Direct:
    """Launches where its first tensor is: Triton would take the device that happens to be the current one."""

    def __init__(self, kernel: Any):
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(first: Tensor, *rest: Any, **options: Any) -> None:
            if not first.is_cuda or first.device.index == torch.cuda.current_device():
                self.kernel[grid](first, *rest, **options)
                return
            with torch.cuda.device(first.device):
                self.kernel[grid](first, *rest, **options)

        return launch


def either(operator: Any, function: Any) -> Any:
    """The operator in a compiled graph, which has to see the kernels inside; the function that it is made of elsewhere,
    for calling an operator takes longer than running it."""
    return operator if torch.compiler.is_compiling() else function


def check_single(what: str) -> None:
    """In the backward of a fused function: its own gradient would be silently wrong, so there is none."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(f"the fused {what} has no second derivative; compute in float32 for that")
