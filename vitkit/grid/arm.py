"""Arms of a comparison, and trials: an arm with one seed, which is one ordinary run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitkit.config import toml


@dataclass(frozen=True, kw_only=True)
class Arm:
    """Settings of `fit` under a name; with `weights_from`, a run starts from that arm's model of the same seed."""

    name: str
    settings: Mapping[str, Any]
    weights_from: Arm | None = None

    def __hash__(self) -> int:
        return hash((self.name, _canonical(self.settings), self.weights_from))


@dataclass(frozen=True)
class Trial:
    """One run of a comparison."""

    arm: Arm
    seed: int

    @property
    def needs(self) -> Trial | None:
        """The trial whose model this one starts from."""
        return None if self.arm.weights_from is None else Trial(self.arm.weights_from, self.seed)

    def settings(self) -> dict[str, Any]:
        """Return the settings of the run but for its folder and the weights of another trial."""
        return toml.merge(self.arm.settings, {"seed": self.seed})

    def identity(self, fingerprint: Callable[[Mapping[str, Any]], str]) -> str:
        """Return a name that is the same for equal settings on equal data, whatever the arm is called.

        fingerprint   of the data that settings name
        """
        parts = [_canonical(self.settings()), fingerprint(self.arm.settings)]
        if self.needs is not None:
            parts.append(self.needs.identity(fingerprint))
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
        model = re.sub(r"[^A-Za-z0-9.+]+", "-", str(self.arm.settings.get("model") or "model"))
        return f"{model}-{digest}-seed{self.seed}"


def trials_of(arms: Iterable[Arm], seeds: Sequence[int]) -> list[Trial]:
    """Return all trials, each seed of all arms before the next seed, and what a trial needs before it.

    A comparison that is stopped early then has complete pairs.
    """
    ordered: dict[Trial, None] = {}

    def add(trial: Trial) -> None:
        if trial.needs is not None:
            add(trial.needs)
        ordered.setdefault(trial)

    arms = list(arms)
    for seed in seeds:
        for arm in arms:
            add(Trial(arm, seed))
    return list(ordered)


def _canonical(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True, default=str)
