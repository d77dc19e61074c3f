"""One description per format serves reading and writing: rules that pair our tensors with the other library's.

Each rule can go both ways, so a file's expected shapes follow from the model's, and every missing, extra or misshapen
tensor is named under the name it has in the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vitkit.errors import WeightsError
from vitkit.model.build import Model, build
from vitkit.model.config import ModelConfig

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Rule:
    native: str
    foreign: tuple[str, ...]  # several where the other library keeps apart what is fused here
    to_native: Callable[..., Tensor]
    to_foreign: Callable[[Tensor], tuple[Tensor, ...]]


def same(native: str, foreign: str) -> Rule:
    return Rule(native, (foreign,), lambda tensor: tensor, lambda tensor: (tensor,))


def parameters(native: str, foreign: str, names: Iterable[str] = ("weight", "bias")) -> Iterator[Rule]:
    """A layer whose tensors are named and shaped alike on both sides."""
    for name in names:
        yield same(f"{native}.{name}", f"{foreign}.{name}")


def batched(native: str, foreign: str) -> Rule:
    """A table that the other library keeps with a batch dimension of 1."""
    return Rule(native, (foreign,), lambda tensor: tensor[0], lambda tensor: (tensor[None],))


def patch_convolution(native: str, foreign: str, channels: int, patch: int) -> Rule:
    """A linear layer over flattened patches ↔ a convolution kernel (D, C, P, P)."""
    return Rule(
        native,
        (foreign,),
        lambda kernel: kernel.flatten(1),
        lambda weight: (weight.unflatten(1, (channels, patch, patch)),),
    )


def fused(native: str, foreign: Iterable[str]) -> Rule:
    """query, key and value in one tensor here, apart there."""
    names = tuple(foreign)
    return Rule(native, names, lambda *parts: torch.cat(parts), lambda tensor: tensor.chunk(len(names)))


def zero_biases(tensors: Tensors, layers: str) -> dict[str, Tensor]:
    """Models with qkv_bias=False: a layer without a bias is one with a bias of zero.

    Only where no layer of that pattern has one; a single missing bias is damage, and stays missing.
    """
    weights = {match[1]: tensors[name] for name in tensors if (match := re.fullmatch(rf"({layers})\.weight", name))}
    if any(f"{layer}.bias" in tensors for layer in weights):
        return dict(tensors)
    return {**tensors, **{f"{layer}.bias": torch.zeros(weight.shape[:1]) for layer, weight in weights.items()}}


def skeleton(config: ModelConfig) -> dict[str, Tensor]:
    """The names and shapes of a model's tensors, without memory for their values."""
    with torch.device("meta"):
        return build(config).state_dict()


def read(tensors: Tensors, rules: Iterable[Rule], config: ModelConfig, origin: str) -> dict[str, Tensor]:
    """The file's tensors as this model's state, or one error that names all that does not fit."""
    shapes = skeleton(config)
    state, problems, left = {}, [], dict(tensors)
    for rule in rules:
        expected = {
            name: tuple(part.shape)
            for name, part in zip(rule.foreign, rule.to_foreign(shapes[rule.native]), strict=True)
        }
        found = {name: left.pop(name, None) for name in expected}
        problems += list(_problems(expected, found))
        if not problems:
            # a copy: safetensors hands out views of the file, which would change, or crash, when the file does
            state[rule.native] = rule.to_native(*found.values()).to(torch.float32, copy=True).contiguous()
    problems += [f"extra     {name}, found {tuple(tensor.shape)}" for name, tensor in left.items()]
    if problems:
        shown = problems[:20] + ([f"… and {len(problems) - 20} more"] if len(problems) > 20 else [])
        raise WeightsError(f"{origin} does not hold the model that its tensors describe.", tensors=shown)
    return state


def write(model: Model, rules: Iterable[Rule]) -> dict[str, Tensor]:
    """The model's state under the other library's names, contiguous and on the CPU."""
    state = model.state_dict()
    return {
        name: part.detach().cpu().contiguous()
        for rule in rules
        for name, part in zip(rule.foreign, rule.to_foreign(state[rule.native]), strict=True)
    }


def _problems(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, Tensor | None]) -> Iterator[str]:
    for name, shape in expected.items():
        tensor = found[name]
        if tensor is None:
            yield f"missing   {name}, expected {shape}"
        elif tuple(tensor.shape) != shape:
            yield f"misshapen {name}, expected {shape}, found {tuple(tensor.shape)}"
        elif not tensor.is_floating_point():
            yield f"not float {name}, found {tensor.dtype}"
