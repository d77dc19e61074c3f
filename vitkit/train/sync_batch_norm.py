"""Batch normalisation over all processes: a batch has the same statistics on however many ranks it is computed."""

from functools import partial

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

from vitkit.model.batch_norm import BatchNorm


def synchronise(model: nn.Module, world_size: int) -> None:
    """Let batch normalisation average its statistics over the ranks, whose micro-batches have the same size."""
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.average = partial(_mean_over_ranks, world_size=world_size)


def _mean_over_ranks(statistics: Tensor, world_size: int) -> Tensor:
    """Return the mean over the ranks; its backward pass is all-reduced as well."""
    mean: Tensor = all_reduce(statistics, op=dist.ReduceOp.SUM) / world_size
    return mean
