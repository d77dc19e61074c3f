"""The measured peak FLOP/s of a device: a large matrix product, which no model in the same precision exceeds."""

import statistics
from dataclasses import dataclass
from typing import Literal

import torch

from vitkit.bench.timing import time_calls

SIDE = {"cuda": 8192}  # large enough to keep a GPU busy
CPU_SIDE = 1536  # takes two cores less than a second
ROUNDS, SECONDS = 12, 0.4


@dataclass(frozen=True)
class Ceiling:
    """The peak FLOP/s of a device in a precision."""

    precision: Literal["bf16", "fp32"]
    side: int  # of square matrices
    flops: float  # operations a second

    @property
    def description(self) -> str:
        unit, scale = ("T", 1e12) if self.flops >= 1e12 else ("G", 1e9)
        return f"{self.flops / scale:,.0f} {unit}FLOP/s, {self.precision} product of {self.side:,}³"


def measure_ceiling(device: torch.device, precision: Literal["bf16", "fp32"]) -> Ceiling:
    side = SIDE.get(device.type, CPU_SIDE)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    # random values: on zeros a GPU draws less power and is faster
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    product = torch.empty_like(a)

    def multiply() -> object:
        return torch.mm(a, b, out=product)

    multiply()
    times = time_calls(multiply, device, ROUNDS, seconds=SECONDS)
    return Ceiling(precision, side, 2 * side**3 / statistics.median(times))
