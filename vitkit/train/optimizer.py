"""The optimizer and its parameter groups: frozen layers, weight decay on kernels only, layer-wise learning rate decay.

Layers are counted from the bottom: 0 is the embedding (patches, class token, positions, a hybrid's stem) or a ResNet's
root; then come the blocks, or a ResNet's stages; the last is what follows them, with the head.
"""

from collections import defaultdict
from typing import Any

import torch
from torch import nn

from vitkit.config.schema import SGD, AdamW, Fit
from vitkit.errors import ConfigError
from vitkit.model.build import Model, transformer_of
from vitkit.text import counted
from vitkit.torch_private import without_compiler
from vitkit.train.objectives.base import Objective


def freeze(model: Model, blocks: int) -> list[str]:
    """Freeze the first `blocks` blocks and all below them, or with -1 all but the head; return the names."""
    depth = _depth(model)
    if blocks > depth:
        kind = "stages" if model.layers[0].startswith("stage") else "blocks"
        raise ConfigError(
            f"freeze = {blocks}, but the model has {depth} {kind}", try_=f"1 to {depth}, or -1 for all but the head"
        )
    if blocks == 0:
        return []
    frozen = {
        name: parameter
        for name, parameter in model.named_parameters()
        if (not name.startswith("head.") if blocks == -1 else layer_index(name, model) <= blocks)
    }
    for parameter in frozen.values():
        parameter.requires_grad_(False)
    return list(frozen)


def build_optimizer(objective: Objective, config: Fit, *, fused: bool) -> torch.optim.Optimizer:
    """Return the optimizer of all trainable parameters, with weight decay on kernels and layer-wise learning rates."""
    groups = _parameter_groups(objective, config)
    settings, fused_or_default = config.optimizer, fused or None  # None: torch's default
    if isinstance(settings, SGD):
        sgd = without_compiler(torch.optim.SGD)
        return sgd(groups, lr=config.lr, momentum=settings.momentum, fused=fused_or_default)
    kind = without_compiler(torch.optim.AdamW if isinstance(settings, AdamW) else torch.optim.Adam)
    return kind(groups, lr=config.lr, betas=settings.betas, eps=settings.eps, fused=fused_or_default)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]


def describe(optimizer: torch.optim.Optimizer) -> str:
    """Return, of Ti/16, "sgd: 50 kernels with weight decay 0.1 (5.6M parameters), 102 other tensors without"."""
    groups = optimizer.param_groups
    decayed = [tensor for group in groups if group["weight_decay"] for tensor in group["params"]]
    others = [tensor for group in groups if not group["weight_decay"] for tensor in group["params"]]
    kind = type(optimizer).__name__.lower()
    if decayed:
        decay = max(group["weight_decay"] for group in groups)
        description = (
            f"{kind}: {counted(len(decayed), 'kernel')} with weight decay {decay:g} ({_count(decayed)}), "
            f"{counted(len(others), 'other tensor')} without"
        )
    else:
        description = f"{kind}: {counted(len(others), 'tensor')} ({_count(others)}), no weight decay"
    lowest = min(group["lr_scale"] for group in groups)
    return description if lowest == 1 else f"{description}; the lowest layer has {lowest:.3g} of the learning rate"


def is_kernel(name: str, parameter: nn.Parameter) -> bool:
    """Return whether it is the weight of a linear layer or a convolution, not of a norm, a table or a token."""
    return name.rpartition(".")[2] == "weight" and parameter.ndim >= 2


def layer_index(name: str, model: Model) -> int:
    """Return the layer of the parameter with this name, 0 … depth + 1, as BEiT and timm count."""
    vit = transformer_of(model)
    own_tables = vit is not None and vit.config.inject == "every"
    match name.removeprefix("backbone.").split("."):  # of a segmenter
        case ["encoder", "blocks", index, *_] | ["body", "stages", index, *_]:
            return int(index) + 1
        case ["encoder", "positions", index, *_] if own_tables:
            return int(index) + 1
        case ["embedding" | "stem" | "patches" | "class_token" | "distillation_token" | "register_tokens", *_]:
            return 0
        case ["encoder", "positions" | "ln_pre", *_]:
            return 0
        case ["body", "root" | "root_norm", *_]:
            return 0
        case _:
            return _depth(model) + 1


def _parameter_groups(objective: Objective, config: Fit) -> list[dict[str, Any]]:
    """Group parameters by learning rate and weight decay: the fewer groups, the fewer kernels a step launches."""
    model, layerwise, members = objective.model, config.layer_decay != 1, defaultdict(list)
    top = _depth(model) + 1
    for name, parameter in objective.named_parameters():
        if parameter.requires_grad:
            own, inside = name.removeprefix("model."), name.startswith("model.")
            layer = layer_index(own, model) if layerwise and inside else top
            decay = config.optimizer.weight_decay if is_kernel(name, parameter) else 0.0
            members[layer, decay].append(parameter)
    groups = []
    for (layer, decay), parameters in sorted(members.items()):
        scale = config.layer_decay ** (top - layer)
        where = f"layer {layer} of {top}" if layerwise else "all layers"
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
    return len(model.blocks)


def _count(tensors: list[nn.Parameter]) -> str:
    count = sum(tensor.numel() for tensor in tensors)
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit} parameters"
    return f"{count} parameters"
