"""How many pictures fit into one pass: counted in closed form, then tried where running out of memory can be caught."""

from __future__ import annotations

import torch

from vitkit.cost import cost
from vitkit.model.build import Model
from vitkit.train.devices import Precision, free_memory
from vitkit.train.narrow import Narrow
from vitkit.train.objectives import Objective
from vitkit.train.parallel import Processes
from vitkit.train.plan import divisors, largest_divisor

CPU_SHARE = 0.25  # of free memory; the data and everybody else live there too
CPU_MOST = 256    # larger passes are no faster on a CPU


def pick_micro(objective: Objective, share: int, processes: Processes, precision: Precision) -> int:
    """The largest part of a process's share that fits, the same in every process."""
    device = processes.device
    if device.type != "cuda":
        room = CPU_SHARE * free_memory(device) / processes.ranks
        most = min(CPU_MOST, _fitting(objective.model, room, precision))
        return int(processes.least(largest_divisor(share, most))[0])
    room = free_memory(device)
    for micro in divisors(share):
        if micro > 1 and _fitting(objective.model, room, precision) < micro:
            continue
        fits = _try(objective, micro, device, precision)
        if processes.least(float(fits))[0]:
            return micro
    return 1


def _fitting(model: Model, room: float, precision: Precision) -> int:
    found = cost(model.config)
    per_picture = found.activation_bytes(1, bytes_per_number=2 if precision == "bf16" else 4)
    return int((room - found.state_bytes) / per_picture)


def _try(objective: Objective, micro: int, device: torch.device, precision: Precision) -> bool:
    """A whole pass forward and back; the gradients, and room for two moments of an optimizer, count as well."""
    config = objective.model.config
    try:
        pixels = torch.rand(micro, config.channels, *config.image, device=device)
        targets = torch.zeros(micro, max(config.classes, 1), device=device)
        loss, _ = (Narrow(objective) if precision == "bf16" else objective)(pixels, targets)
        loss.backward()
        moments = [torch.empty_like(parameter) for parameter in objective.parameters() for _ in range(2)]
        del moments, loss, pixels
        return torch.cuda.mem_get_info(device)[0] > 0.05 * torch.cuda.get_device_properties(device).total_memory
    except torch.OutOfMemoryError:
        return False
    finally:
        objective.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
