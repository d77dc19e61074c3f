"""Which parameters learn, which decay, and how fast each layer moves.

A model's layers, from the bottom: 0 what makes the tokens (a hybrid's stem and the class token with it) or a ResNet's
root; then its blocks, or a ResNet's stages; on top what comes after them, the head.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import nn

from vitkit.config.schema import SGD, AdamW, Fit
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.model.vit import VisionTransformer
from vitkit.train.objectives.labels import Objective


def freeze(model: Model, blocks: int) -> list[str]:
    """The first `blocks` blocks and all below them stay as they are; -1: all but the head. Says what was frozen."""
    depth = _depth(model)
    if blocks > depth:
        kind = "blocks" if isinstance(model, VisionTransformer) else "stages"
        raise ConfigError(
            f"freeze = {blocks}, but the model has {depth} {kind}", try_=f"1 to {depth}, or -1 for all but the head"
        )
    if blocks == 0:
        return []
    frozen = {
        name: parameter
        for name, parameter in model.named_parameters()
        if (not name.startswith("head.") if blocks == -1 else layer_of(name, model) <= blocks)
    }
    for parameter in frozen.values():
        parameter.requires_grad_(False)
    return list(frozen)


def build_optimizer(objective: Objective, config: Fit, *, fused: bool) -> torch.optim.Optimizer:
    """Weight decay on kernels only, a learning rate for each layer. Frozen parameters are left out."""
    groups = _groups(objective, config)
    how, fast = config.optimizer, fused or None  # None: torch's own choice
    if isinstance(how, SGD):
        return torch.optim.SGD(groups, lr=config.lr, momentum=how.momentum, fused=fast)
    kind = torch.optim.AdamW if isinstance(how, AdamW) else torch.optim.Adam
    return kind(groups, lr=config.lr, betas=how.betas, eps=how.eps, fused=fast)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"]


def describe(optimizer: torch.optim.Optimizer) -> str:
    """Of Ti/16: "sgd: 50 kernels with weight decay 0.1 (5.6M numbers), 102 other tensors without"."""
    groups = optimizer.param_groups
    decayed = [tensor for group in groups if group["weight_decay"] for tensor in group["params"]]
    others = [tensor for group in groups if not group["weight_decay"] for tensor in group["params"]]
    kind = type(optimizer).__name__.lower()
    if decayed:
        decay = max(group["weight_decay"] for group in groups)
        words = (
            f"{kind}: {len(decayed)} kernels with weight decay {decay:g} ({_numbers(decayed)}), "
            f"{len(others)} other tensors without"
        )
    else:
        words = f"{kind}: {len(others)} tensors ({_numbers(others)}), no weight decay"
    lowest = min(group["lr_scale"] for group in groups)
    return words if lowest == 1 else f"{words}; the lowest layer learns at {lowest:.3g} of the rate"


def is_kernel(name: str, parameter: nn.Parameter) -> bool:
    """The weight of a dense layer or a convolution. Norms have one dimension; tables, tokens and probes other names."""
    return name.rpartition(".")[2] == "weight" and parameter.ndim >= 2


def layer_of(name: str, model: Model) -> int:
    """Where in the model the parameter of this name is: 0 … depth + 1, as BEiT and timm count."""
    own_tables = isinstance(model, VisionTransformer) and model.config.inject == "every"
    match name.split("."):
        case ["encoder", "blocks", index, *_] | ["body", "stages", index, *_]:
            return int(index) + 1
        case ["encoder", "positions", index, *_] if own_tables:
            return int(index) + 1
        case ["stem" | "patches" | "class_token", *_] | ["encoder", "positions", *_]:
            return 0
        case ["body", "root" | "root_norm", *_]:
            return 0
        case _:
            return _depth(model) + 1


def _groups(objective: Objective, config: Fit) -> list[dict[str, Any]]:
    """Tensors that are treated alike stand together: the fewer groups, the fewer kernels a step launches."""
    model, spread, members = objective.model, config.layer_decay != 1, defaultdict(list)
    top = _depth(model) + 1
    for name, parameter in objective.named_parameters():
        if parameter.requires_grad:
            own, inside = name.removeprefix("model."), name.startswith("model.")
            layer = layer_of(own, model) if spread and inside else top
            decay = config.optimizer.weight_decay if is_kernel(name, parameter) else 0.0
            members[layer, decay].append(parameter)
    groups = []
    for (layer, decay), parameters in sorted(members.items()):
        scale = config.layer_decay ** (top - layer)
        where = f"layer {layer} of {top}" if spread else "all layers"
        groups.append(
            {
                "params": parameters,
                "name": f"{where}, weight decay {decay:g}",
                "weight_decay": decay,
                "lr": config.lr * scale,
                "lr_scale": scale,
            }
        )
    return groups


def _depth(model: Model) -> int:
    return len(model.encoder.blocks if isinstance(model, VisionTransformer) else model.body.stages)


def _numbers(tensors: list[nn.Parameter]) -> str:
    count = sum(tensor.numel() for tensor in tensors)
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit} numbers"
    return f"{count} numbers"
