"""The paper's equations 1 to 4 once more, as plainly as they can be written: loops over heads, no fused anything.

Reads a model's state dict; shares no code with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def forward(state: dict[str, Tensor], config, image: Tensor) -> Tensor:
    """One image (C, height, width) → logits (K,)."""
    p = config.patch
    h, w = image.shape[1] // p, image.shape[2] // p
    patches = [image[:, i * p : (i + 1) * p, j * p : (j + 1) * p].flatten() for i in range(h) for j in range(w)]
    x = linear(state, "patches.project", torch.stack(patches))
    names = [name for name in ("class_token", "distillation_token", "register_tokens") if name in state]
    x = torch.cat([*(state[name] for name in names), x])
    for layer in range(config.depth):
        if config.positions in ("1d", "2d", "sincos", "sincos1d") and (layer == 0 or config.inject != "stem"):
            positions = table(state, config, layer if config.inject == "every" else 0, h, w)
            special = len(positions) - h * w
            x = torch.cat([x[:special] + positions[:special], x[special : -h * w], x[-h * w :] + positions[special:]])
        if layer == 0 and config.ln_pre:
            x = layer_norm(state, "encoder.ln_pre", x, config.eps)
        x = block(state, config, layer, x)
    if config.norm == "pre" and config.pool != "gap-norm":
        x = layer_norm(state, "encoder.norm", x, config.eps)
    y = pool(state, config, x)
    if config.projection:
        y = state["projection.weight"] @ y
    if config.representation:
        y = torch.tanh(linear(state, "head.representation", y))
    if config.normalise:
        y = y / y.square().sum().sqrt()
    if config.distillation == "heads" and config.classes:
        return (
            linear(state, "head.logits.class_token", x[0]) + linear(state, "head.logits.distillation_token", x[1])
        ) / 2
    return linear(state, "head.logits", y) if config.classes else y


def table(state: dict[str, Tensor], config, index: int, h: int, w: int) -> Tensor:
    prefix = f"encoder.positions.{index}"
    if config.positions != "2d":
        return state[f"{prefix}.table"]
    rows = [torch.cat([state[f"{prefix}.columns"][j], state[f"{prefix}.rows"][i]]) for i in range(h) for j in range(w)]
    return torch.cat([state[f"{prefix}.token"], torch.stack(rows)]) if f"{prefix}.token" in state else torch.stack(rows)


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
    if config.induced:
        points = cross_block(state, config, f"{name}.gather", state[f"{name}.points"], x)
        return cross_block(state, config, f"{name}.read", x, points)
    return transformer_block(state, config, name, x, score_bias(state, config, layer))


def cross_block(state: dict[str, Tensor], config, name: str, x: Tensor, context: Tensor) -> Tensor:
    """Lee et al., eq. 6-7: MAB with LayerNorm after each residual connection, or before attention and MLP."""

    def norm(which: str, x: Tensor) -> Tensor:
        return layer_norm(state, f"{name}.{which}", x, config.eps) if f"{name}.{which}.weight" in state else x

    def scaled(which: str, branch: Tensor) -> Tensor:
        return branch * state.get(f"{name}.{which}.gamma", 1)

    pre = config.norm == "pre"
    queries, context = norm("attention_norm", x) if pre else x, norm("context_norm", context)
    q = linear(state, f"{name}.attention.query", queries)
    k, v = linear(state, f"{name}.attention.key_value", context).chunk(2, dim=1)
    x = x + scaled("attention_scale", linear(state, f"{name}.attention.out", mixed_heads(config, q, k, v)))
    x = x if pre else norm("attention_norm", x)
    x = x + scaled("mlp_scale", mlp(state, f"{name}.mlp", norm("mlp_norm", x) if pre else x, config))
    return x if pre else norm("mlp_norm", x)


def mixed_heads(config, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    d = config.width // config.heads
    mixed = []
    for head in range(config.heads):
        part = slice(head * d, (head + 1) * d)
        mixed.append(torch.softmax(q[:, part] @ k[:, part].T / math.sqrt(d), dim=1) @ v[:, part])
    return torch.cat(mixed, dim=1)


def score_bias(state: dict[str, Tensor], config, layer: int) -> Callable[..., Tensor] | None:
    """What relative positions add to the scores: (query, head, i, j) → a number, of patches or tokens i and j."""
    positions = f"encoder.positions.{layer if config.inject == 'every' else 0}"
    (h, w), d = config.grid, config.width // config.heads

    def offset(query: Tensor, head: int, i: int, j: int) -> Tensor:
        return query @ state[f"{positions}.offsets"][j - i + config.tokens - 1, head * d : (head + 1) * d]

    def rows_and_columns(query: Tensor | None, head: int, i: int, j: int) -> Tensor:
        row = state[f"{positions}.rows"][j // w - i // w + h - 1]
        column = state[f"{positions}.columns"][j % w - i % w + w - 1]
        if query is None:
            vectors = (state[f"{positions}.{side}_vectors"][head] for side in ("row", "column"))
            return row @ next(vectors) + column @ next(vectors)
        part = slice(head * d // 2, (head + 1) * d // 2)
        return query[: d // 2] @ row[part] + query[d // 2 :] @ column[part]

    def gaussian(query: Tensor | None, head: int, i: int, j: int) -> Tensor:
        away = torch.tensor([j // w - i // w, j % w - i % w]) - state[f"{positions}.centres"][head]
        sharpness = state[f"{positions}.sharpness"][head]
        scaled = sharpness * away if sharpness.ndim == 0 else away @ sharpness
        return -(scaled**2).sum() / 2 * (1 if query is None else math.sqrt(d))  # divided by the root with the content

    kinds = {"relative": offset, "relative-2d": rows_and_columns, "quadratic": gaussian, "quadratic-general": gaussian}
    return kinds.get(config.positions)


def transformer_block(state: dict[str, Tensor], config, name: str, x: Tensor, bias: Callable | None) -> Tensor:
    def norm(which: str, x: Tensor) -> Tensor:
        return layer_norm(state, f"{name}.{which}", x, config.eps)

    def mixed(x: Tensor) -> Tensor:
        form = attention if config.content else positional_attention
        branch = form(state, config, f"{name}.attention", x, bias)
        return branch if config.layer_scale is None else state[f"{name}.attention_scale.gamma"] * branch

    def transformed(x: Tensor) -> Tensor:
        branch = mlp(state, f"{name}.mlp", x, config)
        return branch if config.layer_scale is None else state[f"{name}.mlp_scale.gamma"] * branch

    if config.norm == "pre":
        x = x + mixed(norm("attention_norm", x))
        return x + transformed(norm("mlp_norm", x))
    x = norm("attention_norm", x + mixed(x))
    return norm("mlp_norm", x + transformed(x))


def project(state: dict[str, Tensor], config, name: str, x: Tensor) -> list[Tensor]:
    """Query, key and value, with rotary positions; the file has the biases of those that have one, in this order."""
    biases = list(state.get(f"{name}.qkv.bias", torch.empty(0)).split(config.width))
    biased = (config.query_bias, config.key_bias, config.value_bias)
    query, key, value = [
        x @ weight.T + (biases.pop(0) if one else 0)
        for weight, one in zip(state[f"{name}.qkv.weight"].chunk(3), biased, strict=True)
    ]
    if config.rotary != "none":
        d = config.width // config.heads
        query, key = (torch.cat([turn(config, part) for part in one.split(d, dim=1)], dim=1) for one in (query, key))
    return [query, key, value]


def turn(config, x: Tensor) -> Tensor:
    """Rotary positions of a head (T, d), patch by patch and pair by pair."""
    (h, w), d = config.grid, x.shape[1]
    turned = x.clone()
    for patch in range(h * w):
        y, z = divmod(patch, w)
        if config.rotary == "centred":
            y, z = 2 * math.pi * ((2 * y + 1) / h - 1), 2 * math.pi * ((2 * z + 1) / w - 1)
        token = len(x) - h * w + patch
        for pair in range(d // 2):
            a, b = (pair, pair + d // 2) if config.rotary_layout == "half" else (2 * pair, 2 * pair + 1)
            angle = (y if pair < d // 4 else z) / config.rotary_base ** (pair % (d // 4) * 4 / d)
            turned[token, a] = x[token, a] * math.cos(angle) - x[token, b] * math.sin(angle)
            turned[token, b] = x[token, a] * math.sin(angle) + x[token, b] * math.cos(angle)
    return turned


def positional_attention(state: dict[str, Tensor], config, name: str, x: Tensor, bias: Callable) -> Tensor:
    """Cordonnier et al., eq. 8: every head mixes whole tokens by scores that no token enters."""
    t, width = x.shape
    y = torch.zeros(t, width, dtype=x.dtype)
    for head in range(config.heads):
        scores = torch.stack([torch.stack([bias(None, head, i, j) for j in range(t)]) for i in range(t)])
        part = slice(head * width, (head + 1) * width)
        y = y + torch.softmax(scores, dim=1) @ x @ state[f"{name}.value.weight"][:, part].T
    return linear(state, f"{name}.out", y + state[f"{name}.value.bias"])


def attention(state: dict[str, Tensor], config, name: str, x: Tensor, bias: Callable | None) -> Tensor:
    t, width = x.shape
    heads = config.heads
    d = width // heads
    q, k, v = project(state, config, name, x)
    mixed = []
    for head in range(heads):
        part = slice(head * d, (head + 1) * d)
        scores = q[:, part] @ k[:, part].T
        if bias is not None:
            for i in range(t):
                for j in range(t):
                    scores[i, j] += bias(q[i, part], head, i, j)
        mixed.append(torch.softmax(scores / math.sqrt(d), dim=1) @ v[:, part])
    return linear(state, f"{name}.out", torch.cat(mixed, dim=1))


def mlp(state: dict[str, Tensor], name: str, x: Tensor, config) -> Tensor:
    if config.swiglu:
        gate, up = linear(state, f"{name}.gate_up", x).split(config.mlp, dim=-1)
        return linear(state, f"{name}.down", gate / (1 + torch.exp(-gate)) * up)
    x = linear(state, f"{name}.up", x)
    if config.gelu == "quick":
        x = x / (1 + torch.exp(-1.702 * x))
    elif config.gelu == "tanh":
        x = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    else:
        x = 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    return linear(state, f"{name}.down", x)


def pool(state: dict[str, Tensor], config, x: Tensor) -> Tensor:
    if config.pool == "token":
        return x[0] if config.distillation == "none" else torch.cat([x[0], x[1]])
    if config.pool == "attention":
        return attention_pool(state, config, x)
    if config.pool == "seeds":
        seeds = cross_block(state, config, "pool.attend", state["pool.seeds"], x)
        return (seeds if len(seeds) == 1 else cross_block(state, config, "pool.among", seeds, seeds)).flatten()
    if config.pool == "token-gap":
        return torch.cat([x[0], x[-config.patches :].mean(0)])
    mean = x[-config.patches :].mean(0)
    return layer_norm(state, "pool.norm", mean, config.eps) if config.pool == "gap-norm" else mean


def attention_pool(state: dict[str, Tensor], config, x: Tensor) -> Tensor:
    """big_vision's MAP head: a learned probe attends to the tokens, then a residual MLP."""
    q = linear(state, "pool.query", state["pool.probe"])
    k, v = linear(state, "pool.key_value", x).chunk(2, dim=1)
    y = linear(state, "pool.out", mixed_heads(config, q, k, v))[0]
    return y + mlp(state, "pool.mlp", layer_norm(state, "pool.mlp_norm", y, config.eps), config)


def layer_norm(state: dict[str, Tensor], name: str, x: Tensor, eps: float) -> Tensor:
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / torch.sqrt(variance + eps) * state[f"{name}.weight"] + state[f"{name}.bias"]


def linear(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ state[f"{name}.weight"].T + state.get(f"{name}.bias", 0)
