"""Means over seeds with their t-intervals, and slopes.

Student's t distribution has a closed form for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4),
which bisection inverts. scipy has it, too, but is forty megabytes that nothing else in the core needs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and its confidence interval; with one seed, the interval is the whole line."""

    mean: float
    low: float
    high: float
    count: int

    def plain(self) -> dict[str, float | int | None]:
        """Return the interval for JSON, which has no infinite numbers."""
        bounds = {"mean": self.mean, "low": self.low, "high": self.high}
        return {name: value if math.isfinite(value) else None for name, value in bounds.items()} | {"count": self.count}


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the mean with its t-interval; values that are not numbers make it unknown, never narrower."""
    count = len(values)
    if count == 0:
        return Interval(math.nan, -math.inf, math.inf, 0)
    mean = math.fsum(values) / count
    if count == 1 or not math.isfinite(mean):
        return Interval(mean, -math.inf, math.inf, count)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = t_quantile(confidence, count - 1) * math.sqrt(variance / count)
    return Interval(mean, mean - half, mean + half, count)


def least_squares_slope(positions: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the line with the least squared distance to the values."""
    centre = math.fsum(positions) / len(positions)
    spread = math.fsum((position - centre) ** 2 for position in positions)
    return math.fsum((x - centre) * y for x, y in zip(positions, values, strict=True)) / spread


def t_quantile(confidence: float, freedom: int) -> float:
    """Return the t such that |T| < t with this probability, for T with so many degrees of freedom."""
    low, high = 0.0, math.pi / 2  # of the angle atan(t / sqrt(freedom)), which is bounded where t is not
    while (middle := (low + high) / 2) not in (low, high):
        if _central_probability(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def _central_probability(angle: float, freedom: int) -> float:
    """Return P(|T| < t) for t = sqrt(freedom) · tan(angle)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine**2 * (power - 1) / power
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
