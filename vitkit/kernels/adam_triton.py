"""Adam in one pass over memory: narrow gradients in, weights and moments moved, narrow copies of the weights out.

A program is for a piece of one tensor; where the tensors are, it looks up in a table.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitkit.kernels.dispatch import direct

PIECE, STEP = 8192, 1024  # numbers of a program, and of them at a time
WARPS = 8
Pieces = tuple[Tensor, Tensor, Tensor]
NUMBERS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}


@triton.jit
def _address(table, tensor, numbers: tl.constexpr):
    """Tensors begin at multiples of 16 bytes: so many are read at once."""
    return tl.multiple_of(tl.load(table + tensor).to(tl.pointer_type(numbers)), 16)


@triton.jit
def _move(
    weights,
    grads,
    firsts,
    seconds,
    copies,
    places,
    there,
    rate,
    decay,
    scale,
    first_share,
    second_share,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    EPS: tl.constexpr,
    DECOUPLED: tl.constexpr,
):
    weight = tl.load(weights + places, mask=there)
    grad = tl.load(grads + places, mask=there).to(tl.float32) * scale
    if DECOUPLED:
        weight -= rate * decay * weight
    else:
        grad += decay * weight
    first = tl.load(firsts + places, mask=there)
    first += (grad - first) * (1 - BETA1)
    second = tl.load(seconds + places, mask=there)
    second = second * BETA2 + grad * grad * (1 - BETA2)
    weight -= rate * first / first_share / (tl.sqrt(second / second_share) + EPS)
    tl.store(weights + places, weight, mask=there)
    tl.store(firsts + places, first, mask=there)
    tl.store(seconds + places, second, mask=there)
    tl.store(copies + places, weight.to(copies.dtype.element_ty), mask=there)


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
    NARROW: tl.constexpr,
    PIECE: tl.constexpr,
    STEP: tl.constexpr,
):
    tensor, start = tl.load(tensors + tl.program_id(0)), tl.load(starts + tl.program_id(0))
    start, size = tl.multiple_of(start, 16), tl.load(sizes + tensor)
    weights, grads = _address(addresses, tensor, tl.float32), _address(addresses + n, tensor, NARROW)
    firsts = _address(addresses + 2 * n, tensor, tl.float32)
    seconds = _address(addresses + 3 * n, tensor, tl.float32)
    copies = _address(addresses + 4 * n, tensor, NARROW)
    rate, decay, factor = tl.load(rates + tensor), tl.load(rates + n + tensor), 1 / tl.load(scale)
    first_share, second_share = tl.load(rates + 2 * n + tensor), tl.load(rates + 3 * n + tensor)
    for step in range(0, PIECE, STEP):
        places = start + step + tl.arange(0, STEP)
        if start + PIECE <= size:
            _move(
                weights,
                grads,
                firsts,
                seconds,
                copies,
                places,
                None,
                rate,
                decay,
                factor,
                first_share,
                second_share,
                BETA1,
                BETA2,
                EPS,
                DECOUPLED,
            )
        else:
            _move(
                weights,
                grads,
                firsts,
                seconds,
                copies,
                places,
                places < size,
                rate,
                decay,
                factor,
                first_share,
                second_share,
                BETA1,
                BETA2,
                EPS,
                DECOUPLED,
            )


def pieces(tensors: list[Tensor]) -> Pieces:
    """Which tensor each program is for and where in it it begins, and how many numbers each tensor has."""
    device = tensors[0].device
    found = [(number, start) for number, tensor in enumerate(tensors) for start in range(0, tensor.numel(), PIECE)]
    numbers, starts = zip(*found, strict=True)
    return (
        torch.tensor(numbers, dtype=torch.int32, device=device),
        torch.tensor(starts, device=device),
        torch.tensor([tensor.numel() for tensor in tensors], device=device),
    )


def adam(
    addresses: Tensor,
    rates: Tensor,
    scale: Tensor,
    divided: Pieces,
    betas: tuple[float, float],
    eps: float,
    *,
    decoupled: bool,
    narrow: torch.dtype,
) -> None:
    """For n tensors, in place: addresses (5, n) of weights, gradients, first and second moments and narrow copies; for
    each, its rate, its weight decay and the shares that moments have of what they will be (4, n). Gradients are divided
    by `scale`."""
    direct(adam_kernel)[(len(divided[0]),)](
        addresses,
        rates,
        scale,
        *divided,
        addresses.shape[1],
        BETA1=betas[0],
        BETA2=betas[1],
        EPS=eps,
        DECOUPLED=decoupled,
        NARROW=NUMBERS[narrow],
        PIECE=PIECE,
        STEP=STEP,
        num_warps=WARPS,
    )
