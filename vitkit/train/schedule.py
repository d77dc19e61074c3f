"""Learning rate schedules: linear warm-up, then decay; a function of the step alone."""

import math

from vitkit.config.schema import Schedule


def lr_factor(schedule: Schedule, step: int, steps: int) -> float:
    """Return the factor on the peak learning rate at optimizer step `step`, counted from 0, of `steps`."""
    warmup = min((step + 1) / max(schedule.warmup, 1), 1.0)
    # as in big_vision: a cooldown longer than the steps after the warm-up lowers the peak, too
    cooldown = min(max(steps - step, 0) / max(schedule.cooldown, 1), 1.0)
    return warmup * _decay(schedule, step, steps) * cooldown


def _decay(schedule: Schedule, step: int, steps: int) -> float:
    """Return the decay, 1 until the warm-up is over; cosine and linear would reach 0 one step after the last."""
    since = max(step - schedule.warmup, 0)
    progress = min(since / max(steps - schedule.warmup, 1), 1.0)
    match schedule.kind:
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        case "linear":
            return 1 - progress
        case "constant":
            return 1.0
        case "step":
            return 0.1 ** sum(step >= round(share * steps) for share in schedule.drops)
        case "rsqrt":
            return 1 / math.sqrt(1 + since / schedule.timescale)
