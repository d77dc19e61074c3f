"""Batch normalisation over two processes is that of one which has the whole batch: loss, gradients, statistics."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.testing import assert_close

from tests.model.kinds import make
from vitkit.data.masks.ignore import IGNORE
from vitkit.train.distributed import Processes, parallelize
from vitkit.train.objectives.segmentation import PixelLabels, build_segmentation

CPU = torch.device("cpu")


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    pixels = torch.rand(4, 3, 16, 40, generator=generator)
    targets = torch.randint(0, 10, (4, 16, 40), generator=generator, dtype=torch.uint8)
    targets[2:, 5:] = IGNORE  # the second process has fewer labelled pixels
    return pixels, targets


def objective_of(kind: str) -> PixelLabels:
    torch.manual_seed(0)
    return build_segmentation(make(kind).train())  # type: ignore[return-value]


def on_rank(rank: int, folder: str) -> None:
    """Compute one rank's part; the process ends at once, for gloo's threads may wait for those of the other rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    compute_part(rank, folder)
    dist.barrier()
    os._exit(0)


def compute_part(rank: int, folder: str) -> None:
    objective = objective_of("linear")
    wrapped = parallelize(objective, "ddp", Processes(CPU, rank, 2), "fp32")
    pixels, targets = (part.chunk(2)[rank] for part in batch())
    loss, _ = wrapped(pixels, targets)
    loss.backward()
    dist.all_reduce(loss)
    state = {name: parameter.grad for name, parameter in objective.named_parameters()}
    state |= {name: tensor for name, tensor in objective.named_buffers() if "running" in name}
    torch.save({"loss": loss.detach() / 2, **state}, Path(folder) / f"{rank}.pt")
    queries = objective_of("queries")  # a process whose masks are all ignored does not leave the other one waiting
    wrapped = parallelize(queries, "ddp", Processes(CPU, rank, 2), "fp32")
    wrapped(pixels, targets.fill_(IGNORE) if rank else targets)[0].backward()
    torch.save({name: parameter.grad for name, parameter in queries.named_parameters()}, Path(folder) / f"q{rank}.pt")


@pytest.mark.usefixtures("one_thread")
def test_two_processes_give_the_loss_gradients_and_statistics_of_one(tmp_path: Path):
    multiprocessing.spawn(on_rank, (str(tmp_path),), nprocs=2)
    objective = objective_of("linear")
    loss, _ = objective(*batch())
    loss.backward()
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert_close(first["loss"], loss.detach())
    for name, parameter in objective.named_parameters():
        assert_close(first[name], parameter.grad, atol=1e-6, rtol=1e-4)
        assert torch.equal(first[name], second[name])
    for name, tensor in objective.named_buffers():
        if "running" in name:
            assert_close(first[name], tensor)
            assert torch.equal(first[name], second[name])
    queries = [torch.load(tmp_path / f"q{rank}.pt") for rank in range(2)]
    for name, grad in queries[0].items():
        assert torch.isfinite(grad).all()
        assert torch.equal(grad, queries[1][name])
