"""Measure what a checkpoint costs the training beside which it is written, all in one run.

    python benchmarks/checkpoints.py [--model B/16] [--image 64] [--batch 4] [--saves 5] [--device cpu] [--json]

A training loop takes steps of AdamW. First it takes them alone; then it saves several times in each of three ways and
takes steps until the write is complete: with vitkit's writer, with the same writer and waiting for it, and with torch's
`async_save` into the same kind of files. Printed are the seconds that a save stops the loop for, and the median and
longest step while a write is in flight, as ratios to the median step alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

import vitkit
from vitkit.run_folder import RunFolder
from vitkit.train.checkpoint import state_of
from vitkit.train.checkpoint_writer import CheckpointWriter
from vitkit.train.distributed import Processes

Save = Callable[[int], Callable[[], bool]]  # begins a save of a step, and returns whether it is still being written


@dataclass(frozen=True)
class Cost:
    """The cost of saving in one way: medians over the saves; steps as ratios to the median step alone."""

    stopped: float  # seconds until the loop goes on
    written: float  # seconds until the checkpoint is complete
    steps_beside: int
    median_step: float
    longest_step: float


def measure(save: Save, saves: int, step: Callable[[], float], alone: float) -> Cost:
    """Save several times, and take steps while each is being written."""
    stopped, written, beside = [], [], []
    for number in range(saves):
        began = time.perf_counter()
        busy = save(number)
        stopped.append(time.perf_counter() - began)
        while busy():
            beside.append(step())
        written.append(time.perf_counter() - began)
        step()
    return Cost(
        statistics.median(stopped),
        statistics.median(written),
        len(beside),
        statistics.median(beside) / alone if beside else 1.0,
        max(beside) / alone if beside else 1.0,
    )


def training_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> float:
    """Take a step and return its seconds."""
    began = time.perf_counter()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    if images.is_cuda:
        torch.cuda.synchronize(images.device)
    return time.perf_counter() - began


@contextmanager
def saves_of_torch(folder: Path, state: Callable[[], dict[str, Tensor]]) -> Iterator[Save]:
    """Yield saves with torch's asynchronous distributed checkpoint."""

    def save(number: int) -> Callable[[], bool]:
        target = HuggingFaceStorageWriter(str(folder / f"torch-{number}"), save_distributed=True)
        future = state_dict_saver.async_save(state(), storage_writer=target, no_dist=True)
        return lambda: not getattr(future, "upload_completion", future).done()

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield save


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", default="B/16")
    parser.add_argument("--image", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    model = vitkit.create(options.model, image=options.image, classes=1000).train().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    images = torch.randn(options.batch, 3, options.image, options.image, device=device)
    labels = torch.arange(options.batch, device=device)

    def step() -> float:
        return training_step(model, optimizer, images, labels)

    def state() -> dict[str, Tensor]:
        return state_of(model, optimizer, None)

    for _ in range(3):
        step()
    alone = statistics.median(step() for _ in range(10))
    size = sum(tensor.nbytes for tensor in state().values())
    costs = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = RunFolder(Path(temporary))
        with CheckpointWriter(folder, Processes(device), state) as writer:

            def save(number: int) -> Callable[[], bool]:
                writer.save({"step": number})
                return lambda: writer.busy

            def save_and_wait(number: int) -> Callable[[], bool]:
                writer.save({"step": number})
                writer.wait()
                return lambda: False

            save_and_wait(0)  # allocates the buffers
            costs["vitkit, beside the steps"] = measure(save, options.saves, step, alone)
            costs["vitkit, waiting for it"] = measure(save_and_wait, options.saves, step, alone)
        with saves_of_torch(folder.path, state) as save_with_torch:
            costs["torch's async_save"] = measure(save_with_torch, options.saves, step, alone)
    if options.json:
        print(json.dumps({"step": alone, "bytes": size, "costs": {name: asdict(cost) for name, cost in costs.items()}}))
        return
    print(f"{options.model}: {size / 1e9:.2f} GB a checkpoint, {alone:.3f} s a step alone")
    print(f"{'':26}  stopped   complete   steps beside: number   median   longest")
    for name, cost in costs.items():
        print(
            f"{name:26} {cost.stopped:6.3f} s {cost.written:8.2f} s {cost.steps_beside:22} {cost.median_step:7.2f}x "
            f"{cost.longest_step:8.2f}x"
        )


if __name__ == "__main__":
    main()
