"""Fused AdamW: one pass over memory reads bf16 gradients, updates weights and moments and writes bf16 copies.

Each program updates a chunk of one tensor, whose address it looks up in a table.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitkit.kernels.dispatch import launcher

CHUNK, STEP = 8192, 1024  # elements of a program, and how many of them at a time
WARPS = 8
WorkTable = tuple[Tensor, Tensor, Tensor]
TRITON_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}


@triton.jit
def _address(table, tensor, dtype: tl.constexpr):
    """Return a tensor's address; tensors are aligned to 16 bytes, which allows vector loads."""
    return tl.multiple_of(tl.load(table + tensor).to(tl.pointer_type(dtype)), 16)


@triton.jit
def _update(
    weights,
    grads,
    first_moments,
    second_moments,
    copies,
    offsets,
    mask,
    rate,
    decay,
    scale,
    first_correction,
    second_correction,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    EPS: tl.constexpr,
    DECOUPLED: tl.constexpr,
):
    weight = tl.load(weights + offsets, mask=mask)
    grad = tl.load(grads + offsets, mask=mask).to(tl.float32) * scale
    if DECOUPLED:
        weight -= rate * decay * weight
    else:
        grad += decay * weight
    first_moment = tl.load(first_moments + offsets, mask=mask)
    first_moment += (grad - first_moment) * (1 - BETA1)
    second_moment = tl.load(second_moments + offsets, mask=mask)
    second_moment = second_moment * BETA2 + grad * grad * (1 - BETA2)
    weight -= rate * first_moment / first_correction / (tl.sqrt(second_moment / second_correction) + EPS)
    tl.store(weights + offsets, weight, mask=mask)
    tl.store(first_moments + offsets, first_moment, mask=mask)
    tl.store(second_moments + offsets, second_moment, mask=mask)
    tl.store(copies + offsets, weight.to(copies.dtype.element_ty), mask=mask)


@triton.jit
def adam_kernel(
    addresses,
    rates,
    scale,
    tensors,
    starts,
    sizes,
    n,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    EPS: tl.constexpr,
    DECOUPLED: tl.constexpr,
    LOW_PRECISION: tl.constexpr,
    CHUNK: tl.constexpr,
    STEP: tl.constexpr,
):
    tensor, start = tl.load(tensors + tl.program_id(0)), tl.load(starts + tl.program_id(0))
    start, size = tl.multiple_of(start, 16), tl.load(sizes + tensor)
    weights, grads = _address(addresses, tensor, tl.float32), _address(addresses + n, tensor, LOW_PRECISION)
    first_moments = _address(addresses + 2 * n, tensor, tl.float32)
    second_moments = _address(addresses + 3 * n, tensor, tl.float32)
    copies = _address(addresses + 4 * n, tensor, LOW_PRECISION)
    rate, decay, factor = tl.load(rates + tensor), tl.load(rates + n + tensor), 1 / tl.load(scale)
    first_correction, second_correction = tl.load(rates + 2 * n + tensor), tl.load(rates + 3 * n + tensor)
    for step in range(0, CHUNK, STEP):
        offsets = start + step + tl.arange(0, STEP)
        if start + CHUNK <= size:
            _update(
                weights,
                grads,
                first_moments,
                second_moments,
                copies,
                offsets,
                None,
                rate,
                decay,
                factor,
                first_correction,
                second_correction,
                BETA1,
                BETA2,
                EPS,
                DECOUPLED,
            )
        else:
            _update(
                weights,
                grads,
                first_moments,
                second_moments,
                copies,
                offsets,
                offsets < size,
                rate,
                decay,
                factor,
                first_correction,
                second_correction,
                BETA1,
                BETA2,
                EPS,
                DECOUPLED,
            )


def split_work(tensors: list[Tensor]) -> WorkTable:
    """Return the tensor and the offset of each program, and the number of elements of each tensor."""
    device = tensors[0].device
    tasks = [(index, start) for index, tensor in enumerate(tensors) for start in range(0, tensor.numel(), CHUNK)]
    indices, starts = zip(*tasks, strict=True)
    return (
        torch.tensor(indices, dtype=torch.int32, device=device),
        torch.tensor(starts, device=device),
        torch.tensor([tensor.numel() for tensor in tensors], device=device),
    )


def adam_step(
    addresses: Tensor,
    rates: Tensor,
    scale: Tensor,
    work: WorkTable,
    betas: tuple[float, float],
    eps: float,
    *,
    decoupled: bool,
    low_precision: torch.dtype,
) -> None:
    """Update n tensors in place.

    addresses  (5, n): weights, gradients, first and second moments, low-precision copies
    rates      (4, n): learning rate, weight decay and the bias corrections of both moments
    scale      divides the gradients: the clipping factor
    """
    options = {"BETA1": betas[0], "BETA2": betas[1], "EPS": eps, "DECOUPLED": decoupled, "CHUNK": CHUNK, "STEP": STEP}
    options |= {"LOW_PRECISION": TRITON_DTYPES[low_precision], "num_warps": WARPS}
    launcher(adam_kernel)[(len(work[0]),)](addresses, rates, scale, *work, addresses.shape[1], **options)
