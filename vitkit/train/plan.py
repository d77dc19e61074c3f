"""How many steps of how many pictures, and how they are shared out; a plan that cannot train anything is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from vitkit.config.schema import Fit
from vitkit.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Plan:
    steps: int
    pictures: int  # to fit
    batch: int  # pictures per step, over all processes
    micro: int  # pictures per pass and process
    processes: int

    @property
    def accumulate(self) -> int:
        """Passes per step."""
        return self.batch // (self.micro * self.processes)

    @property
    def epochs(self) -> float:
        return self.steps * self.batch / self.pictures

    def describe(self) -> str:
        parts = [f"{self.processes} processes"] if self.processes > 1 else []
        parts += [f"{self.accumulate} accumulated"] if self.accumulate > 1 else []
        shared = f" = {self.micro} x " + " x ".join(parts) if parts else ""
        steps, epochs = f"{self.steps:,} step{'s' * (self.steps != 1)}", f"{self.epochs:.3g}"
        return (
            f"{steps}, batch {self.batch}{shared}, {epochs} epoch{'s' * (epochs != '1')} of {self.pictures:,} pictures"
        )


def count_steps(config: Fit, pictures: int) -> Fit:
    """Length and warm-up in steps; what leaves no step, or none after the warm-up, is an error with a way out."""
    if config.steps is None and config.epochs is None:
        raise ConfigError("how long to train is not said", try_="--steps or --epochs")
    steps = config.steps or int((config.epochs or 0) * pictures / config.batch)
    if steps < 1:
        seen = int((config.epochs or 0) * pictures)
        fewer = f"--batch {max(seen // 4, 1)}, or " if seen else ""
        raise ConfigError(
            f"epochs = {config.epochs:g} over {pictures:,} pictures is no step of batch {config.batch}",
            try_=f"{fewer}--epochs {math.ceil(10 * config.batch / pictures)}",
        )
    warmup = config.schedule.warmup
    warmup = round(warmup * steps if warmup < 1 else warmup)
    if warmup >= steps:
        raise ConfigError(
            f"the warm-up of {warmup:,} steps is all of the run's {steps:,}",
            try_="--set schedule.warmup=0.1 for a tenth of the run, or more steps",
        )
    return replace(config, steps=steps, epochs=None, schedule=replace(config.schedule, warmup=warmup))


def check_shares(config: Fit, processes: int) -> int:
    """Pictures per step and process."""
    if config.batch % processes:
        raise ConfigError(
            f"a batch of {config.batch} cannot be shared by {processes} processes",
            try_=f"--batch {-(-config.batch // processes) * processes}",
        )
    return config.batch // processes


def divisors(number: int) -> list[int]:
    """Largest first."""
    return [part for part in range(number, 0, -1) if number % part == 0]


def largest_divisor(number: int, most: int) -> int:
    return next(part for part in divisors(number) if part <= max(most, 1))
