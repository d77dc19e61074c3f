"""The dispatch of the Triton kernels: whether they apply to a tensor, and their launch.

Triton compiles the kernels for GPUs; its interpreter (TRITON_INTERPRET=1) runs them anywhere, for tests.
"""

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

import torch
from torch import Tensor

from vitkit.torch_private import called_while_tracing

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
Function = TypeVar("Function", bound=Callable[..., Any])

_unregistered: dict[str, Callable[..., Any]] = {}  # custom operators that no graph has needed yet
_collected: list["KernelLaunch"] | None = None  # launches, where somebody collects them
_bf16_support: dict[int | None, bool] = {}  # device index → whether it multiplies bf16 natively


def _triton_available() -> bool:
    """Return whether Triton can be imported, without initialising the driver, which data workers do not need."""
    if not INTERPRETED and torch.version.cuda is None:
        return False
    try:
        import_module("triton")
    except Exception:  # missing, or built for another machine
        return False
    return True


TRITON = _triton_available()


def hash_compiler() -> None:
    """Let Triton hash its own files, which name every compiled kernel: it takes a second or two, once in a process."""
    if not TRITON:
        return
    try:
        triton_key = import_module("triton.runtime.cache").triton_key
    except (ImportError, AttributeError):  # another Triton, which does it when it looks for the first kernel
        return
    triton_key()


def triton_applies(x: Tensor) -> bool:
    """Return whether the kernels apply to a tensor: bf16 on a GPU. fp32 is exact and stays with torch's own kernels."""
    return TRITON and ((x.is_cuda and x.dtype == torch.bfloat16 and supports_bf16(x.device)) or INTERPRETED)


def supports_bf16(device: torch.device) -> bool:
    """Return whether a CUDA device multiplies bf16 natively; a compiled graph uses what eager code found."""
    if not torch.compiler.is_compiling() and device.index not in _bf16_support:
        _bf16_support[device.index] = torch.cuda.get_device_capability(device) >= (8, 0)
    return _bf16_support.get(device.index, True)


def launcher(kernel: Any) -> Any:
    """Wrap a kernel for eager launches; inside a custom operator, `torch.library.wrap_triton` takes this place."""
    return _Launcher(kernel)


class _Launcher:
    """Launches a kernel on the device of its first tensor; Triton would take the current device."""

    def __init__(self, kernel: Any):
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(first: Tensor, *rest: Any, **options: Any) -> None:
            if _collected is not None:
                _collected.append(KernelLaunch(self.kernel, grid, (first, *rest), options))
                return
            if not first.is_cuda or first.device.index == torch.cuda.current_device():
                self.kernel[grid](first, *rest, **options)
                return
            with torch.cuda.device(first.device):
                self.kernel[grid](first, *rest, **options)

        return launch


@dataclass(frozen=True)
class KernelLaunch:
    """A launch of a kernel that was not made."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def compile(self) -> None:
        """Compile the kernel for the current CUDA device, or load it from Triton's cache."""
        self.kernel.warmup(*self.arguments, grid=self.grid, **self.options)


@contextmanager
def collected_launches() -> Iterator[list[KernelLaunch]]:
    """Collect the launches of kernels instead of making them: what they would write stays uninitialised."""
    global _collected
    _collected = []
    try:
        yield _collected
    finally:
        _collected = None


def operator(function: Function) -> Function:
    """Make a function that takes `launch` last a custom operator of compiled graphs, under its own name."""
    _unregistered[function.__name__] = function
    return function


def operator_or_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the custom operator in a compiled graph, and elsewhere the function, which is faster to call."""
    if not torch.compiler.is_compiling():
        return function
    _register_operators()
    chosen: Callable[..., Any] = getattr(torch.ops.vitkit, function.__name__)
    return chosen


@called_while_tracing
def _register_operators() -> bool:
    """Register the custom operators when the first graph is traced: registering one imports torch's compiler."""
    while _unregistered:
        name, function = _unregistered.popitem()
        torch.library.triton_op(f"vitkit::{name}", _without_launch(function), mutates_args={})
    return True


def _without_launch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with torch's launcher of traced kernels, and the signature of what is left to pass."""
    launching = partial(function, launch=torch.library.wrap_triton)
    signature = inspect.signature(function, eval_str=True)
    others = [parameter for name, parameter in signature.parameters.items() if name != "launch"]

    def launched(*arguments: Any) -> Any:
        return launching(*arguments)

    launched.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    return launched


def forbid_double_backward(what: str) -> None:
    """Raise an error inside the backward of a fused function, whose own gradient would be silently wrong."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(f"the fused {what} has no second derivative; compute in float32 for that")
