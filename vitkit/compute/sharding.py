"""Recognise what FSDP2 has sharded, without importing it.

torch's sharding takes as long to import as half of torch, and a single process never uses it. A sharded module or
tensor exists only where its class has been imported, so a class that is not there has no instances.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def is_sharded(module: nn.Module) -> TypeGuard[FSDPModule]:
    """Return whether `fully_shard` was applied to the module itself."""
    # without the attribute, another thread is importing the module, and nothing is sharded yet
    sharded = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    return sharded is not None and isinstance(module, sharded)


def is_shard(tensor: Tensor) -> TypeGuard[DTensor]:
    """Return whether this rank holds a shard of the tensor."""
    shard = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)  # as above
    return shard is not None and isinstance(tensor, shard)


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the full tensor where this rank holds a shard of it."""
    return tensor.full_tensor() if is_shard(tensor) else tensor
