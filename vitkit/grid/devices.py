"""The devices of a comparison: a process for each GPU, and several on one GPU or CPU where so many are asked for."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from vitkit.devices import pick_device
from vitkit.errors import ConfigError

MPS = "nvidia-cuda-mps-control"


def pick_devices(name: str, jobs: int | None) -> list[str]:
    """Return the device of each process; with one name, trials run in this process, one after the other."""
    device = pick_device(name)
    if jobs is not None and jobs > 1 and device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--jobs {jobs}: {device} runs one at a time", try_="--device cuda or cpu")
    names = [str(device)]
    if device.type == "cuda" and ":" not in name:
        names = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return [names[number % len(names)] for number in range(jobs or len(names))]


def advise_mps(devices: Sequence[str]) -> str:
    """Return what lets runs on one GPU compute at the same time, where NVIDIA's MPS is installed and not running."""
    shared = [device for device in dict.fromkeys(devices) if device.startswith("cuda") and devices.count(device) > 1]
    if not shared or shutil.which(MPS) is None or (_mps_folder() / "control").exists():
        return ""
    return f"the runs on {shared[0]} compute in turns; {MPS} -d, before this command, lets them compute at once"


def _mps_folder() -> Path:
    """Return the folder through which processes find MPS."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))


def parallel(devices: Sequence[str]) -> int:
    """Return how many runs are as fast at the same time as one alone: one on each GPU, and all those on a CPU."""
    return len(devices) if devices[0] == "cpu" else len(set(devices))
