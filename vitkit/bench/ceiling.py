"""The fastest that a device multiplies matrices, measured: what nothing made of matrix products in these numbers can
exceed. (Products in narrower ones can.)"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

import torch

from vitkit.bench.timing import timed

SIDE = {"cuda": 8192}  # large enough for a GPU to be busy throughout
SMALLER = 1536  # and for two cores not to take a second
ROUNDS, SECONDS = 12, 0.4


@dataclass(frozen=True)
class Ceiling:
    numbers: Literal["bf16", "fp32"]
    side: int  # of square matrices
    flops: float  # operations a second

    @property
    def words(self) -> str:
        unit, scale = ("T", 1e12) if self.flops >= 1e12 else ("G", 1e9)
        return f"{self.flops / scale:,.0f} {unit}FLOP/s, {self.numbers} product of {self.side:,}³"


def measure_ceiling(device: torch.device, numbers: Literal["bf16", "fp32"]) -> Ceiling:
    side = SIDE.get(device.type, SMALLER)
    kind = torch.bfloat16 if numbers == "bf16" else torch.float32
    # normal numbers: on zeros a GPU draws less power and is faster
    a, b = (torch.randn(side, side, device=device, dtype=kind) for _ in range(2))
    product = torch.empty_like(a)

    def multiply() -> object:
        return torch.mm(a, b, out=product)

    multiply()
    times = timed(multiply, device, ROUNDS, seconds=SECONDS)
    return Ceiling(numbers, side, 2 * side**3 / statistics.median(times))
