"""A dry run of forward and backward on random images: does it fit into memory, how long does it take."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from vitkit.model.batch_norm import running_statistics
from vitkit.train.cuda_graph import WARM_UPS, CapturedPass, forward_backward
from vitkit.train.distributed import gradient_sync
from vitkit.train.objectives.base import Objective


def dry_run(wrapped: nn.Module, objective: Objective, micro: int, device: torch.device) -> None:
    """Run forward and backward once; gradients stay until `clear_gradients`."""
    with _kept_statistics(objective), gradient_sync(wrapped, True):
        forward_backward(wrapped, *random_batch(objective, micro, device))


def random_batch(objective: Objective, micro: int, device: torch.device) -> tuple[Tensor, Tensor]:
    config = objective.model.config
    pixels = torch.rand(micro, config.channels, *config.image, device=device)
    return pixels, objective.example_targets(micro).to(device)


def clear_gradients(objective: Objective, device: torch.device) -> None:
    objective.zero_grad(set_to_none=True)
    if device.type == "cuda":
        torch.cuda.empty_cache()


def time_forward_backward(
    wrapped: nn.Module, objective: Objective, micro: int, device: torch.device, *, captured: bool = False
) -> float:
    """Return the seconds of the fastest of three passes after warm-up."""
    parameters = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    call = CapturedPass(wrapped, parameters) if captured else partial(forward_backward, wrapped)
    times = []
    with _kept_statistics(objective):
        for _ in range(WARM_UPS + 3):
            batch = random_batch(objective, micro, device)
            objective.zero_grad(set_to_none=True)
            started = time.perf_counter()
            call(*batch)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - started)
    del call  # frees the graph's memory
    clear_gradients(objective, device)
    return min(times[WARM_UPS:])


@contextmanager
def _kept_statistics(objective: Objective) -> Iterator[None]:
    """Put back the running statistics of batch normalisation, which must not know random images."""
    before = {name: tensor.clone() for name, tensor in running_statistics(objective).items()}
    try:
        yield
    finally:
        for name, tensor in running_statistics(objective).items():
            tensor.copy_(before[name])
