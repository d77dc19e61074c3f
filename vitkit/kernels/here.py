"""Whether fused kernels can be used: Triton compiles them, for GPUs; its interpreter runs them anywhere, for tests."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# asked without waking the driver: a process that only reads pictures has no use for it
TRITON = find_spec("triton") is not None and (INTERPRETED or torch.version.cuda is not None)


def fusable(x: Tensor) -> bool:
    """bf16 on a GPU. Float32 is for exact answers, which come from torch's own kernels."""
    return TRITON and ((x.is_cuda and x.dtype == torch.bfloat16) or INTERPRETED)


def direct(kernel: Any) -> Any:
    """A kernel as it is launched where nothing is compiled; inside an operator, `torch.library.wrap_triton` is."""
    return kernel


def either(operator: Any, function: Any) -> Any:
    """The operator in a compiled graph, which has to see the kernels inside; the function that it is made of elsewhere,
    for calling an operator takes longer than running it."""
    return operator if torch.compiler.is_compiling() else function
