"""The images of every step of training, computed from the seed and the number of the step alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from vitkit.data.epoch_order import Order, OrderOfEpoch, full_order


@dataclass
class EpochSampler:
    """A sampler of n images, shuffled anew in each epoch: a pure function of the seed and a sample number.

    Epochs follow one another without a break: sample s is image order(s // n)[s % n], and a step's batch is the samples
    [step · batch, (step + 1) · batch). Ranks take equal slices of it. So any step can be computed alone.
    """

    images: int
    seed: int = 0
    order: OrderOfEpoch | None = None  # None: a permutation of all images
    _current: tuple[int, Order | None] = field(default=(-1, None), repr=False)

    def __call__(self, sample: int) -> tuple[int, int]:
        """Return the (epoch, image index) of a sample number."""
        return self.samples(sample, sample + 1)[0]

    def samples(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Return the (epoch, image index) pairs of successive sample numbers."""
        epochs, positions = np.divmod(np.arange(first, stop), self.images)
        indices = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            indices[epochs == epoch] = self._order(epoch)(positions[epochs == epoch])
        return list(zip(epochs.tolist(), indices.tolist(), strict=True))

    def batch_indices(self, step: int, batch_size: int, rank: int = 0, world_size: int = 1) -> list[tuple[int, int]]:
        """Return the (epoch, image index) pairs of one rank's share of a step."""
        share = batch_size // world_size
        first = step * batch_size + rank * share
        return self.samples(first, first + share)

    def _order(self, epoch: int) -> Order:
        kept, order = self._current  # one tuple: other threads may replace it
        if epoch != kept or order is None:  # one epoch's order is kept: sequential access computes each once
            order = full_order(self.images, self.seed, epoch) if self.order is None else self.order(epoch)
            self._current = epoch, order
        return order
