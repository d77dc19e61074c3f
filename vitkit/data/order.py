"""Which picture comes when: a pure function of the seed and a running number, so that any step can be asked for alone.

Epochs follow one another without a break: sample s is picture permutation(seed, s // n)[s % n], and a step's batch is
the samples [step · batch, (step + 1) · batch). Processes take equal slices of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


def generator(seed: int, *counters: int) -> np.random.Generator:
    """Random numbers that depend on their address alone: (seed, epoch, index, …), in any order, on any machine."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed % 2**64, *counters))))


@dataclass
class Order:
    """Of n pictures, shuffled anew in each epoch, or as they are."""

    pictures: int
    seed: int = 0
    shuffle: bool = True
    _epoch: int = field(default=-1, repr=False)
    _permutation: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64), repr=False)

    def __call__(self, sample: int) -> tuple[int, int]:
        """The running number of a sample → (epoch, index of the picture)."""
        epoch, position = divmod(sample, self.pictures)
        if not self.shuffle:
            return epoch, position
        if epoch != self._epoch:  # one epoch's permutation is kept; asking in order makes each once
            self._epoch, self._permutation = epoch, generator(self.seed, epoch).permutation(self.pictures)
        return epoch, int(self._permutation[position])

    def step(self, step: int, batch: int, rank: int = 0, ranks: int = 1) -> list[tuple[int, int]]:
        """The (epoch, index) pairs of one process's share of a step."""
        share = batch // ranks
        first = step * batch + rank * share
        return [self(sample) for sample in range(first, first + share)]
