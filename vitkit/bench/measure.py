"""vitkit on this machine: what is to be measured, row by row, and what came of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from vitkit.bench.timing import Ready, Result, Work, out_of_memory, prepare, release, timed
from vitkit.bench.work import What, answering, compiles, flops, training
from vitkit.compute.fused_vit import applies
from vitkit.compute.inference import Numbers, check_numbers, numbers_here
from vitkit.cost import BYTES, cost
from vitkit.devices import free_memory, pick_precision
from vitkit.errors import ConfigError, VitkitError
from vitkit.model.build import Model
from vitkit.model.config import ModelConfig, ViTConfig

ALL: tuple[What, ...] = get_args(What)
STEPS, WARMUPS = 12, 5  # of a GPU
ANSWERS = 100  # instead, where one picture is asked about at a time
SECONDS, CPU_WARMUPS = 2.0, 2  # of a row on a CPU, where nothing is compiled on the way
MOST = {"training": 256, "inference": 512}  # pictures on a GPU unless said
CPU_MOST, CPU_FLOPS = 8, 5e11  # and on a CPU: a step of a few seconds
ROOM = 0.8  # of a GPU's free memory, for what is counted in closed form


class BenchError(VitkitError):
    """What cannot be measured here, and what can."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing to measure."""

    what: What
    numbers: Numbers
    batch: int
    compiled: bool
    graph: bool = False

    @property
    def words(self) -> str:
        return self.numbers + ", compiled" * self.compiled + ", graph" * self.graph

    @property
    def bytes_per_number(self) -> int:
        return BYTES[self.numbers]


def plan(
    model: Model,
    device: torch.device,
    *,
    what: Sequence[What],
    precision: Literal["auto"] | Numbers,
    batch: int | None,
    compiled: bool,
) -> list[Row]:
    """Rows in the order in which they are measured: without `what` all that these numbers serve for; without a batch,
    one that suits the device."""
    config = model.config
    what = what or (ALL if precision != "fp8" else ("inference", "latency"))
    if precision == "fp8":
        _check_fp8(model, device, what)
    answers = _numbers(model, device) if precision == "auto" else (precision,)
    rows: list[Row] = []
    if "training" in what:
        rows.append(
            Row(
                what="training",
                numbers=pick_precision(precision, device),
                compiled=compiled,
                batch=batch or pick_batch(config, "training", device),
            )
        )
    if "inference" in what:
        size = batch or pick_batch(config, "inference", device)
        rows += [
            Row(
                what="inference",
                numbers=numbers,
                batch=size,
                compiled=compiled and compiles(model, "inference", numbers),
            )
            for numbers in answers
        ]
    if "latency" in what:
        rows += [
            Row(
                what="latency",
                numbers=numbers,
                batch=1,
                graph=device.type == "cuda",
                compiled=compiled and compiles(model, "latency", numbers),
            )
            for numbers in answers
        ]
    if device.type == "cpu":  # where asking for too much is not an error but the end of the process
        for row in rows:
            if needed(config, row.what, row.batch, bytes_per_number=row.bytes_per_number) > free_memory(device):
                raise _too_large(config, row, device)
    return rows


def measure(model: Model, row: Row, device: torch.device) -> Result:
    """The row on a copy of the model, whose weights stay as they are."""
    try:
        return _measure(model, row, device)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise _too_large(model.config, row, device) from None
    finally:
        release(device)


def _measure(model: Model, row: Row, device: torch.device) -> Result:
    ready = _prepare(model, row, device)
    steps = ANSWERS if row.what == "latency" else STEPS
    times = timed(
        ready.work, device, steps, alone=row.what == "latency", seconds=math.inf if device.type == "cuda" else SECONDS
    )
    return Result(
        batch=row.batch,
        flops=flops(model.config, row.what),
        times=times,
        compiled=row.compiled,
        first_seconds=ready.first_seconds,
        peak_bytes=ready.peak_bytes,
    )


def _prepare(model: Model, row: Row, device: torch.device) -> Ready:
    def build(own: Model) -> Work:
        if row.what == "training":
            return training(own, device, pick_precision(row.numbers, device), batch=row.batch, compiled=row.compiled)
        return answering(own, device, row.numbers, batch=row.batch, compiled=row.compiled, graph=row.graph)

    try:
        return prepare(
            lambda: copy.deepcopy(model), build, device, warmups=WARMUPS if device.type == "cuda" else CPU_WARMUPS
        )
    except Exception as error:  # compilers have kinds of their own
        if not row.compiled or isinstance(error, VitkitError) or out_of_memory(error):
            raise
        first = str(error).strip().splitlines()[:1]
        raise BenchError(
            f"torch could not compile {row.what} in {row.numbers} here.",
            found=f"{type(error).__name__}: {''.join(first)[:200]}",
            try_="--compile no",
        ) from error


def pick_batch(config: ModelConfig, what: Literal["training", "inference"], device: torch.device) -> int:
    """What keeps a device busy, as far as there is room."""
    if device.type == "cuda":
        return _fitting(config, what, MOST[what], ROOM * free_memory(device), bytes_per_number=2)
    return _power_of_two(min(CPU_MOST, CPU_FLOPS / flops(config, what)))


def _fitting(config: ModelConfig, what: What, most: int, room: float, *, bytes_per_number: int) -> int:
    """The largest power of two, up to `most`, that there is room for."""
    sizes = (1 << shift for shift in reversed(range(most.bit_length())))
    return next((size for size in sizes if needed(config, what, size, bytes_per_number=bytes_per_number) <= room), 1)


def needed(config: ModelConfig, what: What, batch: int, *, bytes_per_number: int) -> int:
    """Bytes at least: state and activations in training, weights and those of one layer otherwise."""
    found = cost(config)
    activations = found.activation_bytes(batch, bytes_per_number=bytes_per_number)
    if what == "training":
        return found.state_bytes + activations
    layers = config.depth if isinstance(config, ViTConfig) else sum(config.body.layers)
    return found.parameters * bytes_per_number + activations // layers


def _numbers(model: Model, device: torch.device) -> tuple[Numbers, ...]:
    """What is worth knowing of a device: on a GPU with anything narrower, nobody answers in fp32."""
    found = tuple(numbers for numbers in numbers_here(device) if numbers != "fp8" or applies(model))
    narrow = tuple(numbers for numbers in found if numbers != "fp32")
    return narrow if device.type == "cuda" and narrow else found


def _check_fp8(model: Model, device: torch.device, what: Sequence[What]) -> None:
    if "training" in what:
        raise ConfigError(
            "fp8 is for inference: training computes in bf16 or fp32",
            try_="--what inference latency, or --precision bf16",
        )
    check_numbers(model, device, "fp8")


def _too_large(config: ModelConfig, row: Row, device: torch.device) -> BenchError:
    total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else free_memory(device)
    pictures = f"{row.batch:,} pictures at a time" if row.batch > 1 else "one picture at a time"
    smaller = _fitting(config, row.what, row.batch // 2, ROOM * total, bytes_per_number=row.bytes_per_number)
    return BenchError(
        f"{row.what} with {pictures} does not fit into the {total / 2**30:.1f} GiB of {device}.",
        try_=f"--batch {smaller}" if row.batch > 1 else "a smaller model, or a smaller --image",
    )


def _power_of_two(most: float) -> int:
    return 1 << max(int(most).bit_length() - 1, 0)
