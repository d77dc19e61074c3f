"""Staging: the copy of the training state in host memory that a checkpoint is written from while training goes on.

The buffers are allocated once and used again, so that there is one copy at most. A rank copies only what it writes: its
shards, and its share of the tensors that every rank has.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vitkit.compute.sharding import is_shard
from vitkit.torch_private import shard_offsets
from vitkit.train.distributed import Processes


@dataclass(frozen=True, kw_only=True)
class StagedState:
    """The tensors that one rank writes, on the host, and where each begins in the tensor of all ranks."""

    tensors: Mapping[str, Tensor]
    offsets: Mapping[str, tuple[int, ...]]


class Staging:
    """The host buffers of a rank, pinned where the state is on a GPU."""

    def __init__(self, processes: Processes):
        self.processes = processes
        self._buffers: dict[str, Tensor] = {}

    @torch.no_grad()
    def copy(self, state: Mapping[str, Tensor]) -> StagedState:
        """Copy the state as it is now; when this returns, the next step may change it."""
        staged, offsets = {}, {}
        for name, tensor in own_tensors(state, self.processes.rank, self.processes.world_size).items():
            local = tensor.to_local() if is_shard(tensor) else tensor
            if not local.numel():  # there are more ranks than rows
                continue
            staged[name] = self._buffer(name, local).copy_(local, non_blocking=local.is_cuda)
            offsets[name] = shard_offsets(tensor) if is_shard(tensor) else (0,) * local.ndim
        if self.processes.device.type == "cuda":
            torch.cuda.current_stream(self.processes.device).synchronize()
        return StagedState(tensors=staged, offsets=offsets)

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != like.shape or buffer.dtype != like.dtype:
            buffer = torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)
            self._buffers[name] = buffer
        return buffer


def own_tensors(state: Mapping[str, Tensor], rank: int, world_size: int) -> dict[str, Tensor]:
    """Return the tensors that a rank writes: all that are sharded, and of the others as many bytes as other ranks."""
    shared = [name for name, tensor in state.items() if not is_shard(tensor)]
    writers, loads = {}, [0] * world_size
    for name in sorted(shared, key=lambda name: (-state[name].nbytes, name)):
        writers[name] = loads.index(min(loads))
        loads[writers[name]] += state[name].nbytes
    return {name: tensor for name, tensor in state.items() if writers.get(name, rank) == rank}
