"""A claim of the paper as an experiment: arms to train or numbers to measure, a rule for the verdict, and a figure.

A claim is plain data and four functions. `setup` says what runs at a scale, `measure` takes numbers from trained or
public models, `judge` turns the log into findings, `draw` into a figure like the paper's. Whatever is shown comes from
the log, so that pages can be made again from logs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure

from vitkit.grid.arm import Arm
from vitkit.grid.verdict import Finding
from vitkit.paper.datasets import Datasets
from vitkit.paper.evidence import Evidence

Scale = Literal["smoke", "small", "paper"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A claim's experiment at one scale.

    differs   how it differs from the paper's own, in a sentence
    """

    arms: tuple[Arm, ...] = ()
    seeds: tuple[int, ...]
    differs: str

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """The arguments of `measure`: the scale, the data, the device and the run folders of the arms, for one seed."""

    scale: Scale
    seed: int
    datasets: Datasets
    device: str
    runs: Mapping[str, Path]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of the paper.

    statement   what is claimed, as a sentence
    source      where: "Table 8"
    paper       the paper's own numbers
    rule        what confirms it here
    """

    number: int
    name: str
    statement: str
    source: str
    paper: str
    rule: str
    setup: Callable[[Scale, Datasets], Setup]
    judge: Callable[[Evidence], Sequence[Finding]]
    draw: Callable[[Evidence], Figure]
    measure: Callable[[Measuring], Mapping[str, Any]] | None = None
