"""Several processes as one run: torchrun starts them, torch.distributed joins them, DDP or FSDP2 shares the work."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from vitkit.devices import Precision
from vitkit.errors import ConfigError, VitkitError
from vitkit.model.resnet import ResNet
from vitkit.train.mixed_precision import Narrow

Sharing = Literal["none", "ddp", "fsdp"]
Result = TypeVar("Result")

CROWDED = 0.35  # of a device's memory: weights, gradients and moments above this are sharded
# A sum that is read again is written down: torch would rather add up the residual branches of up to four blocks again
COMPILED = {"realize_reads_threshold": 1}


@dataclass(frozen=True)
class Processes:
    """Which of how many this one is; collective calls are nothing where there is one."""

    device: torch.device
    rank: int = 0
    world_size: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def barrier(self) -> None:
        if self.world_size > 1:
            dist.barrier()

    def mean(self, values: Tensor) -> Tensor:
        """Over processes, in place."""
        if self.world_size > 1:
            dist.all_reduce(values)
            values /= self.world_size
        return values

    def total(self, *numbers: float) -> list[float]:
        return self._reduced(numbers, dist.ReduceOp.SUM) if self.world_size > 1 else list(numbers)

    def most(self, *numbers: float) -> list[float]:
        return self._reduced(numbers, dist.ReduceOp.MAX) if self.world_size > 1 else list(numbers)

    def least(self, *numbers: float) -> list[float]:
        return self._reduced(numbers, dist.ReduceOp.MIN) if self.world_size > 1 else list(numbers)

    def broadcast(self, value: Any) -> Any:
        """What the first process has, for all of them."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, device=self.device)
        return box[0]

    def everyones(self, value: Any) -> list[Any]:
        """What each process has, in the order of their ranks."""
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values

    def alone(self, action: Callable[[], Result]) -> Result | None:
        """Done by the first process; its failure is everyone's, so that nobody waits for it in vain."""
        result, failure = None, None
        if self.first:
            try:
                result = action()
            except VitkitError as error:
                failure = error
        failure = self.broadcast(failure)
        if failure is not None:
            raise failure if self.first else SystemExit(2)  # told once
        return result

    def agreed(self, action: Callable[[], Result]) -> Result:
        """Done by every process; the failure of one is everyone's."""
        result, failure = None, None
        try:
            result = action()
        except VitkitError as error:
            failure = error
        failures = self.everyones(failure)
        if failure is not None:
            raise failure
        for rank, other in enumerate(failures):
            if other is not None:
                raise ConfigError(f"process {rank} of {self.world_size}, on its machine: {other}")
        return result  # type: ignore[return-value]

    def _reduced(self, numbers: tuple[float, ...], how: Any) -> list[float]:
        values = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(values, op=how)
        return values.tolist()


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[Processes]:
    """All processes that torchrun started, or this one alone."""
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks == 1:
        yield Processes(device)
        return
    if lacking := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise ConfigError(
            f"WORLD_SIZE says that there are {ranks} processes, and {lacking[0]}, which torchrun sets "
            "for each of them, is not there.",
            try_=[f"torchrun --nproc-per-node={ranks} -m vitkit …", "unset WORLD_SIZE, for one process"],
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", device_id=device if device.type == "cuda" else None
    )
    try:
        yield Processes(device, dist.get_rank(), ranks)
    finally:
        dist.destroy_process_group()


def lost_peer(error: BaseException) -> bool:
    """Whether that is how torch says that a process it waited for is gone."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError)
        and any(words in str(error) for words in ("Connection closed by peer", "Connection reset by peer", "gloo"))
    )


def pick_sharing(asked: str, ranks: int, state_bytes: int, memory: int) -> Sharing:
    """FSDP where every process holding the whole state would leave too little room; DDP, which is faster, elsewhere."""
    if ranks == 1:
        return "none"
    if asked != "auto":
        return "fsdp" if asked == "fsdp" else "ddp"
    return "fsdp" if state_bytes > CROWDED * memory else "ddp"


def share(
    objective: Any, how: Sharing, processes: Processes, precision: Precision, *, compiled: bool = False
) -> nn.Module:
    """The module to call in a step; with FSDP the objective's parameters become shards, in place."""
    device = processes.device
    computed = objective
    if precision == "bf16" and how != "fsdp":
        computed = Narrow(objective, one_by_one=how == "ddp" and not compiled)  # compiled, they come at once anyway
    if compiled:
        computed.compile(options=COMPILED)
    if how == "fsdp":
        mesh = torch.distributed.device_mesh.init_device_mesh(device.type, (processes.world_size,))
        # inputs stay as they are: colours and mixed shares would be rounded; the objective rounds what the model sees
        policy = (
            MixedPrecisionPolicy(cast_forward_inputs=False)
            if precision == "fp32"
            else MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
        )
        model = objective.model
        for part in model.body.stages if isinstance(model, ResNet) else model.encoder.blocks:
            fully_shard(part, mesh=mesh, mp_policy=policy)
        return fully_shard(objective, mesh=mesh, mp_policy=policy)
    if how == "ddp":
        with warnings.catch_warnings():  # the option's new name, which older versions do not know
            warnings.filterwarnings("ignore", message=".*broadcast_buffers.* is deprecated")
            return DistributedDataParallel(
                computed,
                device_ids=[device] if device.type == "cuda" else None,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
            )
    return computed


@contextlib.contextmanager
def gathering(shared: nn.Module, last: bool) -> Iterator[None]:
    """Gradients travel between processes with the last part of a step alone."""
    if isinstance(shared, DistributedDataParallel) and not last:
        with shared.no_sync():
            yield
        return
    if isinstance(shared, FSDPModule):
        shared.set_requires_gradient_sync(last)
    yield


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor of which this process may hold a shard."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
