"""Distributed training: a launcher starts the processes, torch.distributed connects them, DDP or FSDP2 splits work."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitkit.compute.sharding import is_sharded
from vitkit.devices import TrainPrecision
from vitkit.errors import ConfigError, VitkitError
from vitkit.launcher import check_complete, launch
from vitkit.torch_private import INDUCTOR_OPTIONS
from vitkit.train.mixed_precision import MixedPrecision
from vitkit.train.rendezvous import meet
from vitkit.train.sync_batch_norm import synchronise

Parallelism = Literal["none", "ddp", "fsdp"]
Result = TypeVar("Result")

FSDP_ABOVE = 0.35  # share of a device's memory: larger weights, gradients and moments are sharded


@dataclass(frozen=True)
class Processes:
    """The rank of this process, the world size and the collectives, which do nothing where the world size is 1."""

    device: torch.device
    rank: int = 0
    world_size: int = 1
    group: dist.ProcessGroup | None = None  # None: the group of all collectives of training

    @property
    def is_rank_zero(self) -> bool:
        return self.rank == 0

    def background(self) -> "Processes":
        """Return the same ranks with a group of their own on the CPU, for the collectives of another thread."""
        group = dist.new_group(backend="gloo") if self.world_size > 1 else None
        return replace(self, device=torch.device("cpu"), group=group)

    def leave(self) -> None:
        """Leave a group of `background`."""
        if self.group is not None:
            dist.destroy_process_group(self.group)

    def barrier(self) -> None:
        if self.world_size > 1:
            dist.barrier(self.group)

    def all_reduce_mean(self, values: Tensor) -> Tensor:
        """Average over all ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(values, group=self.group)
            values /= self.world_size
        return values

    def all_reduce_sum(self, *values: float) -> list[float]:
        return self._all_reduce(values, dist.ReduceOp.SUM) if self.world_size > 1 else list(values)

    def all_reduce_max(self, *values: float) -> list[float]:
        return self._all_reduce(values, dist.ReduceOp.MAX) if self.world_size > 1 else list(values)

    def all_reduce_min(self, *values: float) -> list[float]:
        return self._all_reduce(values, dist.ReduceOp.MIN) if self.world_size > 1 else list(values)

    def broadcast(self, value: Any) -> Any:
        """Return the value of rank zero on every rank."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, group=self.group, device=self.device)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in the order of the ranks."""
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value, group=self.group)
        return values

    def on_rank_zero(self, action: Callable[[], Result]) -> Result | None:
        """Run `action` on rank zero only; if it fails, every rank stops instead of waiting for rank zero."""
        result, failure = None, None
        if self.is_rank_zero:
            try:
                result = action()
            except VitkitError as error:
                failure = error
        failure = self.broadcast(failure)
        if failure is not None:
            raise failure if self.is_rank_zero else SystemExit(2)  # one rank prints the message
        return result

    def all_or_raise(self, action: Callable[[], Result]) -> Result:
        """Run `action` on every rank; if it fails on one, raise on all of them."""
        result, failure = None, None
        try:
            result = action()
        except VitkitError as error:
            failure = error
        failures = self.gather(failure)
        if failure is not None:
            raise failure
        for rank, other in enumerate(failures):
            if other is not None:
                raise ConfigError(f"rank {rank} of {self.world_size} failed on its machine: {other}")
        return result  # type: ignore[return-value]

    def _all_reduce(self, values: tuple[float, ...], op: Any) -> list[float]:
        reduced = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(reduced, op=op, group=self.group)
        return reduced.tolist()


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[Processes]:
    """Join the processes that a launcher has started; without a launcher, yield a world of one process."""
    here = launch()
    check_complete(here)
    if here.world_size == 1:
        yield Processes(device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=meet(here, device),
        rank=here.rank,
        world_size=here.world_size,
        device_id=device if device.type == "cuda" else None,
    )
    try:
        yield Processes(device, here.rank, here.world_size)
    finally:
        dist.destroy_process_group()


def lost_peer(error: BaseException) -> bool:
    """Return whether the error means that another process of the group has ended."""
    if isinstance(error, dist.DistError):  # NCCL's failures, the store's and the network's
        return True
    # Last resort: gloo's C++ exceptions reach Python as a plain RuntimeError (seen in torch 2.13). Each message
    # starts with the source file: "[…/gloo/transport/tcp/pair.cc:553] Connection closed by peer".
    return type(error) is RuntimeError and "gloo" in str(error)


def pick_parallelism(requested: str, world_size: int, state_bytes: int, memory: int) -> Parallelism:
    """Return FSDP where a full copy of the state on every rank leaves too little memory, else DDP, which is faster."""
    if world_size == 1:
        return "none"
    if requested != "auto":
        return "fsdp" if requested == "fsdp" else "ddp"
    return "fsdp" if state_bytes > FSDP_ABOVE * memory else "ddp"


def parallelize(
    objective: Any, parallelism: Parallelism, processes: Processes, precision: TrainPrecision, *, compiled: bool = False
) -> nn.Module:
    """Return the module to call in a step; with FSDP the objective's parameters become shards, in place."""
    device = processes.device
    if processes.world_size > 1:
        synchronise(objective.model, processes.world_size)
    computed = objective
    if precision == "bf16" and parallelism != "fsdp":
        # a compiled backward returns all gradients together anyway
        computed = MixedPrecision(objective, per_tensor=parallelism == "ddp" and not compiled)
    if compiled:
        objective.before_compiling()
        computed.compile(options=INDUCTOR_OPTIONS)
    if parallelism == "fsdp":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # for those who shard

        mesh = torch.distributed.device_mesh.init_device_mesh(device.type, (processes.world_size,))
        # no cast of inputs: pixels and soft targets would be rounded; the objective casts what the model gets
        policy = (
            MixedPrecisionPolicy(cast_forward_inputs=False)
            if precision == "fp32"
            else MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
        )
        model = objective.model
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        return fully_shard(objective, mesh=mesh, mp_policy=policy)
    if parallelism == "ddp":
        with warnings.catch_warnings():  # older versions do not know the option's new name
            warnings.filterwarnings("ignore", message=".*broadcast_buffers.* is deprecated")
            return DistributedDataParallel(
                computed,
                device_ids=[device] if device.type == "cuda" else None,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
            )
    return computed


@contextlib.contextmanager
def gradient_sync(wrapped: nn.Module, last: bool) -> Iterator[None]:
    """Synchronise gradients between ranks only in the last micro-batch of a step."""
    if isinstance(wrapped, DistributedDataParallel) and not last:
        with wrapped.no_sync():
            yield
        return
    if is_sharded(wrapped):
        wrapped.set_requires_gradient_sync(last)
    yield
