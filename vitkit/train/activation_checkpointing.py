"""Activation checkpointing (`recompute`): a block keeps its input only and runs again in the backward pass.

Blocks are wrapped from outside, under the same parameter names.
"""

from collections.abc import Mapping
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitkit.model.build import Model
from vitkit.torch_private import Slot, read_slots, swapped, tensor_slots


def set_recompute(model: Model, on: bool) -> None:
    """Switch activation checkpointing of a Transformer's blocks on or off; other models are left as they are."""
    for block in model.blocks if model.recomputable else ():
        if on:
            block.forward = MethodType(_forward, block)  # a bound method, which copies of the model copy along
        else:
            vars(block).pop("forward", None)


def recomputes(model: Model) -> bool:
    """Return whether the model's blocks are recomputed in the backward pass."""
    return model.recomputable and any("forward" in vars(block) for block in model.blocks)


def _forward(block: nn.Module, x: Tensor, *rest: Any) -> Tensor:
    """Compute a block; before its name, the last of its inputs is the dict of what is captured."""
    run, seen = partial(type(block).forward, block), rest[-2]
    if not torch.is_grad_enabled() or seen:
        return run(x, *rest)
    if not torch.compiler.is_compiling():
        slots = tensor_slots(block)
        tensors = read_slots(slots)
        if not all(isinstance(tensor, nn.Parameter) for tensor in tensors.values()):
            # bf16 copies are in the place of the weights in the forward pass only: the second run needs them, too
            run = partial(_with_tensors, block, slots, tensors)
    output: Tensor = checkpoint(run, x, *rest, use_reentrant=False)
    return output


def _with_tensors(block: nn.Module, slots: Mapping[str, Slot], tensors: Mapping[str, Tensor], *inputs: Any) -> Tensor:
    with swapped(slots, tensors):
        return type(block).forward(block, *inputs)
