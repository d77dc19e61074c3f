"""The four formats by name, and what each of their modules offers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from torch import Tensor

from vitkit.model.build import Model
from vitkit.weights import google, huggingface, native, timm
from vitkit.weights.formats import Checkpoint, Content, Losses


class Format(Protocol):
    def recognises(self, names: Collection[str]) -> bool:
        """Whether tensors of these names are this format's."""

    def load(self, checkpoint: Checkpoint) -> Content: ...

    def tensors_of(self, model: Model) -> dict[str, Tensor]: ...

    def losses(self, model: Model) -> Losses:
        """What writing this model would not keep."""


FORMATS: dict[str, Format] = {"vitkit": native, "google": google, "timm": timm, "hf": huggingface}
