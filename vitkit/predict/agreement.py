"""The agreement of another engine's or file's probabilities, or vectors, with those of the exact model on the same
images.

Shapes: n images, K classes, V width of a vector.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """`same` and `agree` differ in ties: two classes that the exact model itself can hardly tell apart."""

    images: int
    same: int  # images with the same most likely class and, with thresholds, the same classes above them
    agree: int  # images with that class, or with another that the exact model finds as likely within the tie
    largest: float  # the largest difference of any probability


def measure_agreement(
    exact: NDArray[np.float32], other: NDArray[np.float32], *, tie: float, thresholds: Sequence[float] | None = None
) -> Agreement:
    """Compare two (n, K) tables of probabilities; nan agrees with nothing."""
    rows = np.arange(len(exact))
    first, answer = exact.argmax(axis=1), other.argmax(axis=1)
    finite = np.isfinite(exact).all(axis=1) & np.isfinite(other).all(axis=1)
    same = (first == answer) & finite
    if thresholds is not None:
        limits = np.array(thresholds, np.float32)
        same &= ((exact >= limits) == (other >= limits)).all(axis=1)
    return Agreement(
        images=len(exact),
        same=int(same.sum()),
        agree=int(((exact[rows, first] - exact[rows, answer] <= tie) & finite).sum()),
        largest=float(np.abs(exact - other).max()) if finite.all() else math.inf,
    )


@dataclass(frozen=True, kw_only=True)
class VectorAgreement:
    """The cosine similarities of vectors with the exact ones, which search and clustering compare them by."""

    images: int
    lowest: float  # of all images
    mean: float


def measure_vector_agreement(exact: NDArray[np.float32], other: NDArray[np.float32]) -> VectorAgreement:
    """Compare two (n, V) tables of vectors; nan agrees with nothing, a vector of zeros only with itself."""
    lengths = np.linalg.norm(exact, axis=1) * np.linalg.norm(other, axis=1)
    similar = np.where(
        lengths > 0, (exact * other).sum(axis=1) / np.where(lengths > 0, lengths, 1), (exact == other).all(axis=1)
    )
    similar = np.nan_to_num(similar, nan=-1.0)
    return VectorAgreement(images=len(exact), lowest=float(similar.min()), mean=float(similar.mean()))
