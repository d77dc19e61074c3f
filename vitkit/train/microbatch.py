"""How many pictures fit into one pass: counted in closed form, then tried where running out of memory can be caught."""

from __future__ import annotations

import torch

from vitkit.cost import BYTES, cost
from vitkit.devices import Precision, free_memory
from vitkit.model.build import Model
from vitkit.model.vit import VisionTransformer
from vitkit.train.distributed import Processes
from vitkit.train.dry_run import forget, practise
from vitkit.train.mixed_precision import Narrow
from vitkit.train.objectives.labels import Objective
from vitkit.train.plan import divisors, largest_divisor

CPU_SHARE = 0.25  # of free memory; the data and everybody else live there too
CPU_MOST = 256  # larger passes are no faster on a CPU
HOPE = 1.5  # times what is counted is tried on a GPU: fused passes keep less than the plain ones it is counted of
FEWEST = 16  # in a pass of a GPU: below, going through blocks twice is faster than more, smaller passes


def settle(
    objective: Objective, share: int, processes: Processes, precision: Precision, *, micro: int | None, recompute: str
) -> tuple[int, bool]:
    """Pictures in a pass, and whether blocks are gone through again on the way back, which is set in the model."""
    model = objective.model
    if not isinstance(model, VisionTransformer):  # whose blocks it is about
        return micro or pick_micro(objective, share, processes, precision), False
    model.encoder.recompute = recompute == "yes"
    if micro is not None:
        return micro, model.encoder.recompute
    micro = pick_micro(objective, share, processes, precision)
    if recompute == "auto" and processes.device.type == "cuda" and micro < min(share, FEWEST):
        model.encoder.recompute = True
        micro = pick_micro(objective, share, processes, precision)
    return micro, model.encoder.recompute


def pick_micro(objective: Objective, share: int, processes: Processes, precision: Precision) -> int:
    """The largest part of a process's share that fits, the same in every process."""
    device = processes.device
    if device.type != "cuda":
        room = CPU_SHARE * free_memory(device) / processes.world_size
        most = min(CPU_MOST, _fitting(objective.model, room, precision))
        return int(processes.least(largest_divisor(share, most))[0])
    room = free_memory(device)
    for micro in divisors(share):
        if micro > 1 and HOPE * _fitting(objective.model, room, precision) < micro:
            continue
        fits = _try(objective, micro, device, precision)
        if processes.least(float(fits))[0]:
            return micro
    return 1


def _fitting(model: Model, room: float, precision: Precision) -> int:
    found, width = cost(model.config), BYTES[precision]
    per_picture = found.activation_bytes(1, bytes_per_number=width)
    if isinstance(model, VisionTransformer) and model.encoder.recompute:  # what enters each block, and all of one
        config = model.config
        per_picture = per_picture // config.depth + config.depth * config.tokens * config.width * width
    return int((room - found.state_bytes) / per_picture)


def _try(objective: Objective, micro: int, device: torch.device, precision: Precision) -> bool:
    """A whole pass forward and back; the gradients, and room for two moments of an optimizer, count as well."""
    computed = Narrow(objective) if precision == "bf16" else objective
    try:
        practise(computed, objective, micro, device)
        moments = [torch.empty_like(parameter) for parameter in objective.parameters() for _ in range(2)]
        del moments
        return torch.cuda.mem_get_info(device)[0] > 0.05 * torch.cuda.get_device_properties(device).total_memory
    except torch.OutOfMemoryError:
        return False
    finally:
        forget(objective, device)
