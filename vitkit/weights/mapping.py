"""Rules that map our tensors to another library's and back: one list per format serves reading and writing.

Each rule goes both ways, so a file's expected shapes follow from the model's, and errors name every missing, extra or
misshapen tensor as the file does.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import torch
from torch import Tensor

from vitkit.errors import WeightsError
from vitkit.model.build import Model, build_on_meta
from vitkit.model.config import ModelConfig
from vitkit.text import few

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Rule:
    native: str | tuple[str, ...]  # several where the other library joins our tensors
    foreign: tuple[str, ...]  # several where the other library splits our tensor
    to_native: Callable[..., Tensor | tuple[Tensor, ...]]
    to_foreign: Callable[..., tuple[Tensor, ...]]

    @property
    def natives(self) -> tuple[str, ...]:
        return (self.native,) if isinstance(self.native, str) else self.native


def unchanged(native: str, foreign: str) -> Rule:
    return Rule(native, (foreign,), lambda tensor: tensor, lambda tensor: (tensor,))


def same_layer(native: str, foreign: str, names: Iterable[str] = ("weight", "bias")) -> Iterator[Rule]:
    """Yield the rules of a layer whose tensors have the same names and shapes on both sides."""
    for name in names:
        yield unchanged(f"{native}.{name}", f"{foreign}.{name}")


def batched(native: str, foreign: str) -> Rule:
    """Return the rule of a table that has a batch dimension of 1 in the other library."""
    return Rule(native, (foreign,), lambda tensor: tensor[0], lambda tensor: (tensor[None],))


def patch_convolution(native: str, foreign: str, channels: int, patch: int) -> Rule:
    """Return the rule from a linear layer over flattened patches to a convolution kernel (D, C, P, P)."""
    return Rule(
        native,
        (foreign,),
        lambda kernel: kernel.flatten(1),
        lambda weight: (weight.unflatten(1, (channels, patch, patch)),),
    )


def concatenated(native: str, foreign: Iterable[str]) -> Rule:
    """Return the rule of query, key and value, one tensor here and three in the other library."""
    names = tuple(foreign)
    return Rule(native, names, lambda *tensors: torch.cat(tensors), lambda tensor: tensor.chunk(len(names)))


def split(native: Iterable[str], foreign: str, parts: Iterable[int]) -> Rule:
    """Return the rule of tensors that the other library joins along their first dimension, in these parts of it."""
    names, sizes = tuple(native), list(parts)

    def separate(tensor: Tensor) -> tuple[Tensor, ...]:
        share = tensor.shape[0] // sum(sizes)
        return tuple(tensor.split([share * size for size in sizes]))

    return Rule(names, (foreign,), separate, lambda *tensors: (torch.cat(tensors),))


def transposed(native: str, foreign: str) -> Rule:
    return Rule(native, (foreign,), lambda tensor: tensor.T, lambda tensor: (tensor.T,))


def zero_biases(tensors: Tensors, layers: str) -> dict[str, Tensor]:
    """Add zero biases to the layers of models with qkv_bias=False.

    This applies only where no layer of that pattern has a bias; a single missing bias is damage and stays missing.
    """
    weights = {match[1]: tensors[name] for name in tensors if (match := re.fullmatch(rf"({layers})\.weight", name))}
    if any(f"{layer}.bias" in tensors for layer in weights):
        return dict(tensors)
    return {**tensors, **{f"{layer}.bias": torch.zeros(weight.shape[:1]) for layer, weight in weights.items()}}


@lru_cache(maxsize=8)
def meta_state_dict(config: ModelConfig) -> Mapping[str, Tensor]:
    """Return the names and shapes of a model's tensors on the meta device, without memory for their values."""
    return MappingProxyType(build_on_meta(config).state_dict())


def to_native_state(tensors: Tensors, rules: Iterable[Rule], config: ModelConfig, origin: str) -> dict[str, Tensor]:
    """Return the file's tensors as this model's state dict; one error names every tensor that does not fit."""
    shapes = meta_state_dict(config)
    state, problems, left = {}, [], dict(tensors)
    for rule in rules:
        expected = {
            name: tuple(tensor.shape)
            for name, tensor in zip(
                rule.foreign, rule.to_foreign(*(shapes[name] for name in rule.natives)), strict=True
            )
        }
        stored = {name: left.pop(name, None) for name in expected}
        problems += list(_problems(expected, stored))
        if not problems:
            # a copy: safetensors returns views of the mapped file, which would change or crash with the file
            made = rule.to_native(*stored.values())
            for name, tensor in zip(rule.natives, (made,) if isinstance(made, Tensor) else made, strict=True):
                state[name] = tensor.to(torch.float32, copy=True).contiguous()
    problems += [f"extra     {name}, found {tuple(tensor.shape)}" for name, tensor in left.items()]
    if problems:
        shown = problems[:20] + ([f"… and {len(problems) - 20} more"] if len(problems) > 20 else [])
        raise WeightsError(f"the tensors in {origin} do not match the model that they describe.", tensors=shown)
    return state


def to_foreign_tensors(model: Model, rules: Iterable[Rule]) -> dict[str, Tensor]:
    """Return the model's state dict under the other library's names, contiguous and on the CPU."""
    state = model.state_dict()
    tensors = {
        name: tensor.detach().cpu().contiguous()
        for rule in rules
        for name, tensor in zip(rule.foreign, rule.to_foreign(*(state.pop(name) for name in rule.natives)), strict=True)
    }
    if state:
        raise WeightsError(
            f"the format has no names for {len(state)} of the model's tensors; nothing was written.",
            tensors=few([*state]),
        )
    return tensors


def _problems(expected: Mapping[str, tuple[int, ...]], stored: Mapping[str, Tensor | None]) -> Iterator[str]:
    for name, shape in expected.items():
        tensor = stored[name]
        if tensor is None:
            yield f"missing   {name}, expected {shape}"
        elif tuple(tensor.shape) != shape:
            yield f"misshapen {name}, expected {shape}, found {tuple(tensor.shape)}"
        elif not tensor.is_floating_point():
            yield f"not float {name}, found {tensor.dtype}"
