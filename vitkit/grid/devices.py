"""The devices of a comparison: a process for each GPU, and several on one GPU or CPU where so many are asked for."""

from collections.abc import Sequence

import torch

from vitkit.devices import pick_device
from vitkit.errors import ConfigError


def pick_devices(name: str, jobs: int | None) -> list[str]:
    """Return the device of each process; with one name, trials run in this process, one after the other."""
    device = pick_device(name)
    if jobs is not None and jobs > 1 and device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--jobs {jobs}: {device} runs one at a time", try_="--device cuda or cpu")
    names = [str(device)]
    if device.type == "cuda" and ":" not in name:
        names = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return [names[number % len(names)] for number in range(jobs or len(names))]


def parallel(devices: Sequence[str]) -> int:
    """Return how many runs are as fast at the same time as one alone: one on each GPU, and all those on a CPU."""
    return len(devices) if devices[0] == "cpu" else len(set(devices))
