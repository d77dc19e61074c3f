"""The largest micro-batch that fits into memory: estimated in closed form, then tried on a GPU."""

import torch

from vitkit.cost import BYTES, cost
from vitkit.devices import TrainPrecision, free_memory
from vitkit.model.build import Model
from vitkit.model.config import TokenConfig
from vitkit.train.activation_checkpointing import recomputes, set_recompute
from vitkit.train.distributed import Processes
from vitkit.train.dry_run import clear_gradients, dry_run
from vitkit.train.mixed_precision import MixedPrecision
from vitkit.train.objectives.base import Objective
from vitkit.train.plan import divisors, largest_divisor

CPU_SHARE = 0.25  # of free memory, which data and other processes need, too
CPU_MAX = 256  # images; a larger micro-batch is no faster on a CPU
OPTIMISM = 1.5  # times the estimate is tried on a GPU: fused modules keep fewer activations than the estimate counts
GPU_MIN = 16  # images: below, activation checkpointing is faster than more, smaller micro-batches


def choose_micro_batch(
    objective: Objective,
    share: int,
    processes: Processes,
    precision: TrainPrecision,
    *,
    micro: int | None,
    recompute: str,
) -> tuple[int, bool]:
    """Return the micro-batch size and whether activation checkpointing is on, which is set in the model."""
    model = objective.model
    set_recompute(model, recompute == "yes")
    if micro is not None:
        return micro, recomputes(model)
    micro = largest_micro_batch(objective, share, processes, precision)
    if recompute == "auto" and processes.device.type == "cuda" and micro < min(share, GPU_MIN):
        set_recompute(model, True)
        if recomputes(model):
            micro = largest_micro_batch(objective, share, processes, precision)
    return micro, recomputes(model)


def largest_micro_batch(objective: Objective, share: int, processes: Processes, precision: TrainPrecision) -> int:
    """Return the largest divisor of a rank's share of the batch that fits into memory on every rank."""
    device = processes.device
    if device.type != "cuda":
        room = CPU_SHARE * free_memory(device) / processes.world_size
        most = min(CPU_MAX, _estimate(objective.model, room, precision))
        return int(processes.all_reduce_min(largest_divisor(share, most))[0])
    room = free_memory(device)
    for micro in divisors(share):
        if micro > 1 and OPTIMISM * _estimate(objective.model, room, precision) < micro:
            continue
        fits = _fits(objective, micro, device, precision)
        if processes.all_reduce_min(float(fits))[0]:
            return micro
    return 1


def _estimate(model: Model, room: float, precision: TrainPrecision) -> int:
    estimate, width = cost(model.config), BYTES[precision]
    per_image = estimate.activation_bytes(1, bytes_per_number=width)
    config = model.config
    if isinstance(config, TokenConfig) and recomputes(model):  # each block's input, and all activations of one block
        per_image = per_image // config.depth + config.depth * config.tokens * config.width * width
    return int((room - estimate.state_bytes) / per_image)


def _fits(objective: Objective, micro: int, device: torch.device, precision: TrainPrecision) -> bool:
    """Return whether forward and backward fit together with the gradients and two moments of an optimizer."""
    wrapped = MixedPrecision(objective) if precision == "bf16" else objective
    try:
        dry_run(wrapped, objective, micro, device)
        moments = [torch.empty_like(parameter) for parameter in objective.parameters() for _ in range(2)]
        del moments
        return torch.cuda.mem_get_info(device)[0] > 0.05 * torch.cuda.get_device_properties(device).total_memory
    except torch.OutOfMemoryError:
        return False
    finally:
        clear_gradients(objective, device)
