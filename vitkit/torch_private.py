"""Every private symbol of torch that vitkit relies on, in one place.

Seen in torch 2.11.0 and 2.13.0. Each has a contract test of its own in tests/test_torch_private.py, so that an
upgrade of torch names what broke.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import cache
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

# inductor: write down a sum that is read again; by default it recomputes the residual branches of up to four blocks
INDUCTOR_OPTIONS = {"realize_reads_threshold": 1}

# of a safetensors file: where each tensor begins in the whole one, which the distributed checkpoint's reader looks up
SHARDING_INFO, SAVED_OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"

SIGCHLD_HANDLER = "torch.utils.data._utils.signal_handling"  # the module that raises when a data worker has died

Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)
Constant = TypeVar("Constant", bound=Callable[[], Any])
Slot = tuple[MutableMapping[str, Any], str]  # where a module keeps a tensor: its dictionary and the key


def cudnn_attention(query: Tensor, key: Tensor, value: Tensor, *, with_lse: bool) -> tuple[Tensor, Tensor]:
    """Return cuDNN's attention (B, H, T, d) and, for a backward pass, the log-sum-exp of each row (B, H, T, 1)."""
    result = torch.ops.aten._scaled_dot_product_cudnn_attention(query, key, value, None, with_lse)
    return result[0], result[1]


def addmm_gelu(bias: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """Return tanh-GELU(rows @ weight.T + bias); on CUDA, cuBLAS applies the GELU in the epilogue of the product."""
    return torch._addmm_activation(bias, rows, weight.t(), use_gelu=True)


def scaled_mm(rows: Tensor, row_scales: Tensor, weight: Tensor, weight_scales: Tensor, bias: Tensor) -> Tensor:
    """Return the product of two fp8 matrices, (R, D) and (M, D), with a scale for each row of both, plus bias."""
    return torch._scaled_mm(
        rows,
        weight.t(),
        scale_a=row_scales,
        scale_b=weight_scales.t(),
        bias=bias,
        out_dtype=bias.dtype,
        use_fast_accum=True,
    )


def has_int8_linear() -> bool:
    """Return whether this build of torch has oneDNN's int8 product."""
    return hasattr(torch.ops.onednn, "qlinear_pointwise") and hasattr(torch.ops.onednn, "qlinear_prepack")


def pack_int8(weight: Tensor) -> Tensor:
    """Return an int8 weight (M, D) in the layout that `int8_linear` takes."""
    packed: Tensor = torch.ops.onednn.qlinear_prepack(weight, None)
    return packed


def int8_linear(rows: Tensor, zero_point: int, packed: Tensor, scales: Tensor, zero_points: Tensor) -> Tensor:
    """(R, D) uint8 with a zero point, a packed weight with a scale for each output → (R, M) float32."""
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        rows, 1.0, zero_point, packed, scales, zero_points, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return product


def gelu_(x: Tensor) -> Tensor:
    """Apply the exact GELU in place."""
    result: Tensor = torch.ops.aten.gelu_(x)
    return result


def cpu_instructions() -> set[str]:
    """Return the instruction sets of the CPU that torch reports, by the names that Linux has for them."""
    capabilities = getattr(torch.cpu, "get_capabilities", None)
    if capabilities is not None:
        return {name for name, supported in capabilities().items() if supported is True}
    probes = {"avx512_vnni": "_is_vnni_supported", "avx512_bf16": "_is_avx512_bf16_supported"}  # before torch 2.12
    return {name for name, function in probes.items() if getattr(torch.cpu, function, bool)()}


def worker_processes(batches: object) -> Sequence[BaseProcess]:
    """Return the worker processes of a DataLoader's iterator."""
    return getattr(batches, "_workers", ())


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor was written in place, which autograd counts."""
    return tensor._version


def has_hooks(module: nn.Module) -> bool:
    """Return whether somebody has registered a forward or backward hook on this module itself."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def tensor_slots(module: nn.Module) -> dict[str, Slot]:
    """Return where the module and its children keep each parameter and buffer, by full name."""
    return {
        f"{path}.{name}".lstrip("."): (held, name)
        for path, child in module.named_modules()
        for held in (child._parameters, child._buffers)
        for name in held
    }


def read_slots(slots: Mapping[str, Slot]) -> dict[str, Tensor]:
    """Return the floating-point tensors that are in the slots now."""
    tensors = {name: held[key] for name, (held, key) in slots.items()}
    return {name: one for name, one in tensors.items() if one is not None and one.is_floating_point()}


@contextmanager
def swapped(slots: Mapping[str, Slot], tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Put other tensors into the slots, and the module's own back at the end.

    torch.func.functional_call does the same, but looks every name up in each call: a tenth of a small model's step.
    """
    own = {name: slots[name][0][slots[name][1]] for name in tensors}
    try:
        _fill(slots, tensors)
        yield
    finally:
        _fill(slots, own)


def _fill(slots: Mapping[str, Slot], tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        held, key = slots[name]
        held[key] = tensor


def without_compiler(kind: type[Optimizer]) -> type[Optimizer]:
    """Return one of torch's optimizers, by the same name, whose steps do not import torch's compiler.

    torch wraps the methods below, so that a compiled caller does not trace them, and imports its compiler to do so,
    which takes longer than torch itself. vitkit compiles no optimizer, and calls what is inside the wrappers.
    """
    unwrapped: type[Optimizer] = _unwrapped(kind)  # type: ignore[arg-type]  # mypy: a class has no hash
    return unwrapped


@cache
def _unwrapped(kind: type[torch.optim.Optimizer]) -> Any:
    own_step = inspect.unwrap(kind.step)

    def step(self: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        with torch.no_grad():
            return own_step(self, closure)

    others = {name: inspect.unwrap(getattr(kind, name)) for name in ("add_param_group", "zero_grad")}
    return type(kind.__name__, (kind,), {"__doc__": kind.__doc__, "step": step, **others})


def called_while_tracing(function: Constant) -> Constant:
    """Let dynamo call a function while it traces its caller, and take the result as a constant.

    torch.compiler.assume_constant_result does the same, and imports the compiler, which takes longer than torch itself.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def forget_compiled(module: nn.Module) -> None:
    """Undo `module.compile()` for a module and its children."""
    for child in module.modules():
        child._compiled_call_impl = None


@contextmanager
def unlimited_recompiles() -> Iterator[None]:
    """Lift dynamo's limit of 8 recompilations, which counts all models of a process together."""
    import torch._dynamo  # takes a second to import, for those who compile

    with torch._dynamo.config.patch(recompile_limit=1000, accumulated_recompile_limit=1000):
        yield


def foreach_copy_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:  # one launch for the whole list
    torch._foreach_copy_(list(targets), list(sources))


def foreach_lerp_(targets: Sequence[Tensor], sources: Sequence[Tensor], weight: float) -> None:
    torch._foreach_lerp_(list(targets), list(sources), weight)


def foreach_add_(targets: Sequence[Tensor], number: float) -> None:
    torch._foreach_add_(list(targets), number)


def foreach_norm(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return list(torch._foreach_norm(list(tensors), 2, dtype))


def shard_offsets(tensor: Tensor) -> tuple[int, ...]:
    """Return where the shard of this rank begins in a DTensor that is sharded along one mesh dimension."""
    (chunk,) = tensor.__create_chunk_list__()  # type: ignore[attr-defined]  # a DTensor's, for distributed checkpoints
    return tuple(chunk.offsets)
