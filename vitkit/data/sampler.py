"""The order of images in training: a pure function of the seed and a sample number, so any step can be computed alone.

Epochs follow one another without a break: sample s is image permutation(seed, s // n)[s % n], and a step's batch is the
samples [step · batch, (step + 1) · batch). Ranks take equal slices of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from vitkit.data.stateless_rng import generator


@dataclass
class EpochSampler:
    """A sampler of n images that shuffles them anew in each epoch."""

    images: int
    seed: int = 0
    _epoch: int = field(default=-1, repr=False)
    _permutation: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64), repr=False)

    def __call__(self, sample: int) -> tuple[int, int]:
        """Return the (epoch, image index) of a sample number."""
        epoch, position = divmod(sample, self.images)
        if epoch != self._epoch:  # one epoch's permutation is kept: sequential access computes each once
            self._epoch, self._permutation = epoch, generator(self.seed, epoch).permutation(self.images)
        return epoch, int(self._permutation[position])

    def batch_indices(self, step: int, batch_size: int, rank: int = 0, world_size: int = 1) -> list[tuple[int, int]]:
        """Return the (epoch, image index) pairs of one rank's share of a step."""
        share = batch_size // world_size
        first = step * batch_size + rank * share
        return [self(sample) for sample in range(first, first + share)]
