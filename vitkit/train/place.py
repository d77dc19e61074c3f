"""Where a run is: with the tensors of a checkpoint, all that resuming needs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Place:
    step: int = 0  # finished
    best: float = -math.inf
    best_step: int = 0
    since_best: int = 0  # looks
    skipped: tuple[int, ...] = ()  # steps left out after their loss was no number
    stopped: bool = False  # by patience

    def record(self) -> dict[str, Any]:
        """As plain data, which has no infinity."""
        return {**asdict(self), "best": None if math.isinf(self.best) else self.best}


def place_of(record: dict[str, Any]) -> Place:
    best = record["best"]
    return Place(**{**record, "best": -math.inf if best is None else best, "skipped": tuple(record["skipped"])})
