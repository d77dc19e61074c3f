"""The devices of a comparison: every GPU runs one trial at a time, a CPU as many as asked for."""

import torch

from vitkit.devices import pick_device
from vitkit.errors import ConfigError


def pick_devices(name: str, jobs: int | None) -> list[str]:
    """Return the device of each process; with one name, trials run in this process, one after the other."""
    device = pick_device(name)
    if device.type == "cuda" and ":" not in name and jobs != 1:
        available = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        if jobs is not None and jobs > len(available):
            raise ConfigError(f"--jobs {jobs}: there are {len(available)} GPUs, and each runs one at a time")
        return available[:jobs]
    if jobs is not None and jobs > 1 and device.type != "cpu":
        raise ConfigError(f"--jobs {jobs}: {device} runs one at a time", try_="--device cuda, for all GPUs")
    return [str(device)] * (jobs or 1)
