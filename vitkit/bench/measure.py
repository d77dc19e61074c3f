"""The rows of `vitkit bench`: what to measure on this machine, and the measurement."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch

from vitkit.bench.timing import Prepared, Result, Work, out_of_memory, prepare, release, time_calls
from vitkit.bench.work import What, compiles, flops, inference_call, training_step
from vitkit.compute.fused_vit import reason_to_decline
from vitkit.compute.inference import Precision, check_precision, supported_precisions
from vitkit.cost import BYTES, cost
from vitkit.devices import free_memory, pick_precision
from vitkit.errors import ConfigError, VitkitError
from vitkit.model.build import Model
from vitkit.model.config import ModelConfig

ALL: tuple[What, ...] = get_args(What)
STEPS, WARMUPS = 12, 5  # on a GPU
LATENCY_CALLS = 100  # instead of STEPS, where images come one at a time
SECONDS, CPU_WARMUPS = 2.0, 2  # for a row on a CPU
MAX_BATCH = {"training": 256, "inference": 512}  # on a GPU, by default
CPU_MAX_BATCH, CPU_FLOPS = 8, 5e11  # on a CPU: a step of a few seconds
MEMORY_SHARE = 0.8  # of a GPU's free memory that the estimate may take


class BenchError(VitkitError):
    """A measurement that is not possible on this machine."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement to take."""

    what: What
    precision: Precision
    batch: int
    compiled: bool
    graph: bool = False

    @property
    def description(self) -> str:
        return self.precision + ", compiled" * self.compiled + ", graph" * self.graph

    @property
    def bytes_per_number(self) -> int:
        return BYTES[self.precision]

    def with_batch(self, batch: int) -> "Row":
        return replace(self, batch=batch)


def plan(
    model: Model,
    device: torch.device,
    *,
    what: Sequence[What],
    precision: Literal["auto"] | Precision,
    batch: int | None,
    compiled: bool,
) -> list[Row]:
    """Return the rows in the order of measurement.

    Without `what`, all that the precision supports; without `batch`, one that suits the device.
    """
    config = model.config
    what = what or (ALL if precision != "fp8" else ("inference", "latency"))
    if precision == "fp8":
        _check_fp8(model, device, what)
    precisions = _precisions(model, device) if precision == "auto" else (precision,)
    rows: list[Row] = []
    if "training" in what:
        rows.append(
            Row(
                what="training",
                precision=pick_precision(precision, device),
                compiled=compiled,
                batch=batch or pick_batch(config, "training", device),
            )
        )
    if "inference" in what:
        size = batch or pick_batch(config, "inference", device)
        rows += [
            Row(
                what="inference",
                precision=one,
                batch=size,
                compiled=compiled and compiles(model, "inference", one),
            )
            for one in precisions
        ]
    if "latency" in what:
        rows += [
            Row(
                what="latency",
                precision=one,
                batch=1,
                graph=device.type == "cuda",
                compiled=compiled and compiles(model, "latency", one),
            )
            for one in precisions
        ]
    if device.type == "cpu":  # where running out of memory ends the process
        for row in rows:
            if needed(config, row.what, row.batch, bytes_per_number=row.bytes_per_number) > free_memory(device):
                raise _too_large(config, row, device)
    return rows


def measure(model: Model, row: Row, device: torch.device) -> Result:
    """Measure a row on a copy of the model, whose weights do not change."""
    try:
        return _measure(model, row, device)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise _too_large(model.config, row, device) from None
    finally:
        release(device)


def _measure(model: Model, row: Row, device: torch.device) -> Result:
    prepared = prepare_row(model, row, device, calls=WARMUPS if device.type == "cuda" else CPU_WARMUPS)
    steps = LATENCY_CALLS if row.what == "latency" else STEPS
    times = time_calls(
        prepared.work,
        device,
        steps,
        synchronous=row.what == "latency",
        seconds=math.inf if device.type == "cuda" else SECONDS,
    )
    return Result(
        batch=row.batch,
        flops=flops(model.config, row.what),
        times=times,
        compiled=row.compiled,
        first_seconds=prepared.first_seconds,
        peak_bytes=prepared.peak_bytes,
    )


def prepare_row(model: Model, row: Row, device: torch.device, *, calls: int) -> Prepared:
    """Build the work of a row on a copy of the model and call it so often."""

    def build(own: Model) -> Work:
        if row.what == "training":
            return training_step(
                own, device, pick_precision(row.precision, device), batch=row.batch, compiled=row.compiled
            )
        return inference_call(own, device, row.precision, batch=row.batch, compiled=row.compiled, graph=row.graph)

    try:
        return prepare(lambda: copy.deepcopy(model), build, device, warmups=calls)
    except Exception as error:  # compilers raise types of their own
        if not row.compiled or isinstance(error, VitkitError) or out_of_memory(error):
            raise
        first = str(error).strip().splitlines()[:1]
        raise BenchError(
            f"torch.compile failed for {row.what} in {row.precision}.",
            found=f"{type(error).__name__}: {''.join(first)[:200]}",
            try_="--compile no",
        ) from error


def pick_batch(config: ModelConfig, what: Literal["training", "inference"], device: torch.device) -> int:
    """Return a batch size that keeps the device busy and fits into memory."""
    if device.type == "cuda":
        return _largest_fitting(config, what, MAX_BATCH[what], MEMORY_SHARE * free_memory(device), bytes_per_number=2)
    return _power_of_two(min(CPU_MAX_BATCH, CPU_FLOPS / flops(config, what)))


def _largest_fitting(config: ModelConfig, what: What, limit: int, memory: float, *, bytes_per_number: int) -> int:
    """Return the largest power of two, up to `limit`, that fits into memory."""
    sizes = (1 << shift for shift in reversed(range(limit.bit_length())))
    return next((size for size in sizes if needed(config, what, size, bytes_per_number=bytes_per_number) <= memory), 1)


def needed(config: ModelConfig, what: What, batch: int, *, bytes_per_number: int) -> int:
    """Estimate the bytes: state and activations in training, weights and one layer's activations otherwise."""
    estimate = cost(config)
    activations = estimate.activation_bytes(batch, bytes_per_number=bytes_per_number)
    if what == "training":
        return estimate.state_bytes + activations
    return estimate.parameters * bytes_per_number + activations // config.layers


def _precisions(model: Model, device: torch.device) -> tuple[Precision, ...]:
    """Return the precisions to measure; on a GPU with bf16, not fp32, which is not used for inference there."""
    supported = tuple(one for one in supported_precisions(device) if one != "fp8" or reason_to_decline(model) is None)
    reduced = tuple(one for one in supported if one != "fp32")
    return reduced if device.type == "cuda" and reduced else supported


def _check_fp8(model: Model, device: torch.device, what: Sequence[What]) -> None:
    if "training" in what:
        raise ConfigError(
            "fp8 is for inference; training is measured in bf16 or fp32",
            try_="--what inference latency, or --precision bf16",
        )
    check_precision(model, device, "fp8")


def _too_large(config: ModelConfig, row: Row, device: torch.device) -> BenchError:
    total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else free_memory(device)
    images = f"batch {row.batch:,}" if row.batch > 1 else "one image at a time"
    smaller = _largest_fitting(
        config, row.what, row.batch // 2, MEMORY_SHARE * total, bytes_per_number=row.bytes_per_number
    )
    return BenchError(
        f"{row.what} with {images} does not fit into the {total / 2**30:.1f} GiB of {device}.",
        try_=f"--batch {smaller}" if row.batch > 1 else "a smaller model, or a smaller --image",
    )


def _power_of_two(limit: float) -> int:
    """Return the largest power of two up to `limit`, at least 1."""
    return 1 << max(int(limit).bit_length() - 1, 0)
