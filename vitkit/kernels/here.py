"""Whether fused kernels can be used: Triton compiles them, for GPUs; its interpreter runs them anywhere, for tests."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# asked without waking the driver: a process that only reads pictures has no use for it
TRITON = find_spec("triton") is not None and (INTERPRETED or torch.version.cuda is not None)


def fusable(x: Tensor) -> bool:
    """bf16 on a GPU. Float32 is for exact answers, which come from torch's own kernels."""
    return TRITON and ((x.is_cuda and x.dtype == torch.bfloat16) or INTERPRETED)


def launchable(kernel):  # type: ignore[no-untyped-def]
    """A kernel as it is called inside an operator: so that compiling sees it, where there is a compiler."""
    return kernel if INTERPRETED else torch.library.wrap_triton(kernel)
