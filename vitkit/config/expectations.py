"""The figures to expect of a recipe, published or measured, each with the weights and the table that it belongs to.

A figure without its weights misleads: the paper's 94.43 on Pets is of B/16 pre-trained on ImageNet-21k by its authors,
and AugReg's B/16, which is public as well, gives another one. So a figure cannot be written here without them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Recipe = TypeVar("Recipe", bound=Callable[..., object])

# training images of the sets that recipes are written for
IMAGES = {"JFT-300M": 303_000_000, "ImageNet-21k": 14_197_122, "ImageNet": 1_281_167}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A result in percent and all that it is of."""

    value: str  # "94.43", or "91.57 ± 0.05" over seeds
    on: str  # what was scored
    model: str
    pretrained_on: str  # the set, or "nothing"
    source: str  # "the paper, Table 5"; "ours, docs/pets.md"
    note: str = ""

    def __str__(self) -> str:
        start = "from scratch" if self.pretrained_on == "nothing" else f"pre-trained on {self.pretrained_on}"
        note = f"; {self.note}" if self.note else ""
        return f"{self.value} on {self.on}: {self.model} {start} ({self.source}{note})"


@dataclass(frozen=True)
class Expectation:
    """The figures of a recipe, and the data set that it was written for."""

    figures: tuple[Figure, ...]
    data: str | None  # a key of IMAGES, where the recipe is for that set


EXPECTED: dict[str, Expectation] = {}  # by the name of the recipe


def expect(*figures: Figure, data: str | None = None) -> Callable[[Recipe], Recipe]:
    """Register the figures of the recipe below, and the set that it is written for."""

    def register(recipe: Recipe) -> Recipe:
        EXPECTED[recipe.__name__] = Expectation(figures, data)
        return recipe

    return register


def paper(value: str, on: str, model: str, pretrained_on: str, table: str, note: str = "") -> Figure:
    """Return a figure of the paper; the weights are its authors' own."""
    source = f"the paper, {table}, its authors' weights" if pretrained_on != "nothing" else f"the paper, {table}"
    return Figure(value=value, on=on, model=model, pretrained_on=pretrained_on, source=source, note=note)


def ours(value: str, on: str, model: str, pretrained_on: str, note: str = "") -> Figure:
    """Return a figure that we measured."""
    return Figure(value=value, on=on, model=model, pretrained_on=pretrained_on, source="ours", note=note)
