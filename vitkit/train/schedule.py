"""How the learning rate moves through a run: a linear rise to its peak, then a decay. A function of the step alone."""

from __future__ import annotations

import math

from vitkit.config.schema import Schedule


def factor(schedule: Schedule, step: int, steps: int) -> float:
    """What the peak learning rate is multiplied by for update number `step`, from 0, of `steps`."""
    rise = min((step + 1) / max(schedule.warmup, 1), 1.0)
    # as big_vision has it: a cooldown longer than what is left after the warm-up lowers the peak too
    fall = min(max(steps - step, 0) / max(schedule.cooldown, 1), 1.0)
    return rise * _decay(schedule, step, steps) * fall


def _decay(schedule: Schedule, step: int, steps: int) -> float:
    """1 until the warm-up is over. The last update still moves: nothing is reached one step after it."""
    since = max(step - schedule.warmup, 0)
    progress = min(since / max(steps - schedule.warmup, 1), 1.0)
    match schedule.kind:
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        case "linear":
            return 1 - progress
        case "constant":
            return 1.0
        case "rsqrt":
            return 1 / math.sqrt(1 + since / schedule.timescale)
