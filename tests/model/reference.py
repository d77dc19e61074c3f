"""The paper's equations 1 to 4 once more, as plainly as they can be written: loops over heads, no fused anything.

Reads a model's state dict; shares no code with it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def forward(state: dict[str, Tensor], config, image: Tensor) -> Tensor:
    """One image (C, height, width) → logits (K,)."""
    p = config.patch
    h, w = image.shape[1] // p, image.shape[2] // p
    patches = [image[:, i * p : (i + 1) * p, j * p : (j + 1) * p].flatten() for i in range(h) for j in range(w)]
    x = torch.stack(patches) @ state["patches.project.weight"].T + state["patches.project.bias"]
    if config.class_token:
        x = torch.cat([state["class_token"], x])
    for layer in range(config.depth):
        if config.positions in ("1d", "2d", "sincos", "sincos1d") and (layer == 0 or config.inject != "stem"):
            x = x + table(state, config, layer if config.inject == "every" else 0, h, w)
        x = block(state, config, layer, x)
    if config.norm == "pre" and config.pool != "gap-norm":
        x = layer_norm(state, "encoder.norm", x, config.eps)
    y = pool(state, config, x)
    if config.representation:
        y = torch.tanh(linear(state, "head.representation", y))
    return linear(state, "head.logits", y) if config.classes else y


def table(state: dict[str, Tensor], config, index: int, h: int, w: int) -> Tensor:
    prefix = f"encoder.positions.{index}"
    if config.positions != "2d":
        return state[f"{prefix}.table"]
    rows = [torch.cat([state[f"{prefix}.columns"][j], state[f"{prefix}.rows"][i]]) for i in range(h) for j in range(w)]
    return torch.cat([state[f"{prefix}.token"], torch.stack(rows)]) if config.class_token else torch.stack(rows)


def block(state: dict[str, Tensor], config, layer: int, x: Tensor) -> Tensor:
    name = f"encoder.blocks.{layer}"
    if config.axial:
        h, w = config.grid
        x = x.clone()
        for row in range(h):
            line = torch.arange(row * w, (row + 1) * w)
            x[line] = transformer_block(state, config, f"{name}.row", x[line], None)
        for column in range(w):
            line = torch.arange(column, h * w, w)
            x[line] = transformer_block(state, config, f"{name}.column", x[line], None)
        return x
    offsets = None
    if config.positions == "relative":
        offsets = state[f"encoder.positions.{layer if config.inject == 'every' else 0}.offsets"]
    return transformer_block(state, config, name, x, offsets)


def transformer_block(state: dict[str, Tensor], config, name: str, x: Tensor, offsets: Tensor | None) -> Tensor:
    def norm(which: str, x: Tensor) -> Tensor:
        return layer_norm(state, f"{name}.{which}", x, config.eps)

    if config.norm == "pre":
        x = x + attention(state, f"{name}.attention", norm("attention_norm", x), config.heads, offsets)
        return x + mlp(state, f"{name}.mlp", norm("mlp_norm", x), config.gelu)
    x = norm("attention_norm", x + attention(state, f"{name}.attention", x, config.heads, offsets))
    return norm("mlp_norm", x + mlp(state, f"{name}.mlp", x, config.gelu))


def attention(state: dict[str, Tensor], name: str, x: Tensor, heads: int, offsets: Tensor | None) -> Tensor:
    t, width = x.shape
    d = width // heads
    q, k, v = linear(state, f"{name}.qkv", x).chunk(3, dim=1)
    mixed = []
    for head in range(heads):
        part = slice(head * d, (head + 1) * d)
        scores = q[:, part] @ k[:, part].T
        if offsets is not None:
            for i in range(t):
                for j in range(t):
                    scores[i, j] += q[i, part] @ offsets[j - i + t - 1, part]
        mixed.append(torch.softmax(scores / math.sqrt(d), dim=1) @ v[:, part])
    return linear(state, f"{name}.out", torch.cat(mixed, dim=1))


def mlp(state: dict[str, Tensor], name: str, x: Tensor, gelu: str) -> Tensor:
    x = linear(state, f"{name}.up", x)
    if gelu == "tanh":
        x = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    else:
        x = 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    return linear(state, f"{name}.down", x)


def pool(state: dict[str, Tensor], config, x: Tensor) -> Tensor:
    if config.pool == "token":
        return x[0]
    if config.pool == "attention":
        return attention_pool(state, config, x)
    mean = x[int(config.class_token) :].mean(0)
    return layer_norm(state, "pool.norm", mean, config.eps) if config.pool == "gap-norm" else mean


def attention_pool(state: dict[str, Tensor], config, x: Tensor) -> Tensor:
    """big_vision's MAP head: a learned probe attends to the tokens, then a residual MLP."""
    d = config.width // config.heads
    q = linear(state, "pool.query", state["pool.probe"])
    k, v = linear(state, "pool.key_value", x).chunk(2, dim=1)
    mixed = []
    for head in range(config.heads):
        part = slice(head * d, (head + 1) * d)
        mixed.append(torch.softmax(q[:, part] @ k[:, part].T / math.sqrt(d), dim=1) @ v[:, part])
    y = linear(state, "pool.out", torch.cat(mixed, dim=1))[0]
    return y + mlp(state, "pool.mlp", layer_norm(state, "pool.mlp_norm", y, config.eps), config.gelu)


def layer_norm(state: dict[str, Tensor], name: str, x: Tensor, eps: float) -> Tensor:
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / torch.sqrt(variance + eps) * state[f"{name}.weight"] + state[f"{name}.bias"]


def linear(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]
