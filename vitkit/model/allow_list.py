"""Allow-lists: a fast path, a weight format or an analysis declines, by name, what it does not know of a model.

    UNDERSTOOD = allow("int8 inference", vit="depth width heads …", only={"norm": ("pre",)}, modules={Block: {…}, …})
    UNDERSTOOD.reason_to_decline(model.config, *model.encoder.blocks)   # None, or a sentence that names what is unknown
    UNDERSTOOD.check(model.config)                                      # raises the sentence as a ConfigError

A new field of a config, a new child of a module or a new value of an option is on nobody's list at first, so that
whatever has not learned of it says so instead of leaving it out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from vitkit.errors import ConfigError
from vitkit.model.config import ResNetConfig, ViTConfig
from vitkit.model.conv_config import ConvConfig
from vitkit.model.igpt_config import IGPTConfig
from vitkit.model.segmenter_config import SegmenterConfig
from vitkit.model.spatial_attention import SpatialAttention

if TYPE_CHECKING:  # `vitkit cost` uses an allow-list without waiting for torch
    from torch import nn

Values = Collection[Any] | None  # the values of an option that are understood; None: any
Children = Mapping[str, tuple[type, ...]]  # names of children, parameters and buffers → types; "*" stands for any name


@dataclass(frozen=True)
class AllowList:
    """The options of a config and the modules of a model that `consumer` understands."""

    consumer: str  # "the cost calculator": begins the sentence that declines
    options: Mapping[type, Mapping[str, Values]]  # config class → its fields
    modules: Mapping[type[nn.Module], Children] = field(default_factory=dict)  # exact type → what it may hold

    def reason_to_decline(self, config: Any, *modules: nn.Module) -> str | None:
        """Return the first thing that is not on the list as a sentence, or None."""
        return next(
            chain(self._unknown_options(config), *(self._unknown_modules(module, "") for module in modules)), None
        )

    def check(self, config: Any, *modules: nn.Module) -> None:
        """Raise a ConfigError that names what is not on the list."""
        if reason := self.reason_to_decline(config, *modules):
            raise ConfigError(reason)

    def _unknown_options(self, config: Any) -> Iterator[str]:
        kind = next((kind for kind in type(config).__mro__ if kind in self.options), None)
        if kind is None:
            yield f"{self.consumer} does not know models of the kind {type(config).__name__}"
            return
        for one in fields(config):
            value = getattr(config, one.name)
            if one.name not in self.options[kind]:
                yield f"{self.consumer} does not know the option {one.name} of {type(config).__name__}"
                continue
            values = self.options[kind][one.name]
            if values is not None and value not in values:
                yield f"{self.consumer} does not support {one.name} = {value!r}"
            elif is_dataclass(value):
                yield from self._unknown_options(value)

    def _unknown_modules(self, module: nn.Module, path: str) -> Iterator[str]:
        known = self.modules.get(type(module))
        if known is None:
            yield f"{self.consumer} does not know the module {type(module).__name__}{path and f' at {path}'}"
            return
        members = chain(
            module.named_children(), module.named_parameters(recurse=False), module.named_buffers(recurse=False)
        )
        for name, member in members:
            types, inside = known.get(name, known.get("*", ())), f"{path}.{name}".lstrip(".")
            if not types:
                yield f"{self.consumer} does not know {inside} of {type(module).__name__}"
            elif type(member) not in types:
                yield f"{self.consumer} does not know {inside} as a {type(member).__name__}"
            elif hasattr(member, "named_children"):
                yield from self._unknown_modules(cast("nn.Module", member), inside)


def allow(
    consumer: str,
    *,
    vit: str = "",
    plain: str = "",
    resnet: str = "",
    conv: str = "",
    attention: str = "",
    igpt: str = "",
    segmenter: str = "",
    only: Mapping[str, Collection[Any]] | None = None,
    modules: Mapping[type[nn.Module], Children] | None = None,
) -> AllowList:
    """Return a list of the named fields of each config, with any value or, in `only`, with the values given there.

    The fields of a ViT in `plain` are understood with their default only, that of the paper's model.
    """
    names = {
        ViTConfig: vit,
        ResNetConfig: resnet,
        ConvConfig: conv,
        SpatialAttention: attention,
        IGPTConfig: igpt,
        SegmenterConfig: segmenter,
    }
    options: dict[type, dict[str, Values]] = {
        kind: {name: (only or {}).get(name) for name in text.split()} for kind, text in names.items() if text
    }
    defaults = {one.name: (one.default,) for one in fields(ViTConfig)}
    options.get(ViTConfig, {}).update({name: defaults[name] for name in plain.split()})
    return AllowList(consumer, options, modules or {})
