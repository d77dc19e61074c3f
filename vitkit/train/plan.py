"""The plan of a run: steps, epochs, and the batch divided by processes and gradient accumulation."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from vitkit.config.schema import Fit
from vitkit.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The length of a run and the division of its batch."""

    steps: int
    images: int  # in the training split
    batch: int  # images per step, over all processes
    micro: int  # images per micro-batch and process
    processes: int

    @property
    def accumulate(self) -> int:
        """The micro-batches per step and process."""
        return self.batch // (self.micro * self.processes)

    @property
    def epochs(self) -> float:
        return self.steps * self.batch / self.images

    def describe(self) -> str:
        """Return "500 steps, batch 512 = 2 x 256 accumulated, 69.6 epochs of 3,680 images".

        Where the length was asked for in epochs: "24 steps, batch 128, 3 epochs of 1,020 images and 12 more".
        """
        factors = [f"{self.processes} processes"] if self.processes > 1 else []
        factors += [str(self.accumulate)] if self.accumulate > 1 else []
        division = f" = {' x '.join([*factors, str(self.micro)])}" if factors else ""
        division += " accumulated" * (self.accumulate > 1)
        whole, more = divmod(self.steps * self.batch, self.images)
        completes = whole > 0 and more < self.batch  # the last step completes an epoch, and may begin the next
        epochs = f"{whole:,}" if completes else f"{self.epochs:.3g}"
        length = f"{epochs} epoch{'s' * (epochs != '1')} of {self.images:,} images"
        return f"{self.steps:,} step{'s' * (self.steps != 1)}, batch {self.batch}{division}, {length}" + (
            f" and {more:,} more" if completes and more else ""
        )


def count_steps(config: Fit, images: int) -> Fit:
    """Return the settings with length and warm-up in steps; raise if no step is left, or none after the warm-up."""
    if config.steps is None and config.epochs is None:
        raise ConfigError("the length of training is not set", try_="--steps or --epochs")
    # as the decimal number that the user wrote: in binary, 1.1 epochs of 100 images are a hair more than 110
    samples = Fraction(str(config.epochs or 0)) * images
    # rounded up, so that every image is seen as often as asked: the last batch may begin another epoch
    steps = config.steps or math.ceil(samples / config.batch)
    if config.steps is None and samples < config.batch:
        fewer = f"--batch {max(int(samples) // 4, 1)}, or " if samples >= 1 else ""
        raise ConfigError(
            f"epochs = {config.epochs:g} over {images:,} images is less than one step of batch {config.batch}",
            try_=f"{fewer}--epochs {math.ceil(10 * config.batch / images)}",
        )
    warmup = config.schedule.warmup
    warmup = round(warmup * steps if warmup < 1 else warmup)
    if warmup >= steps:
        raise ConfigError(
            f"the warm-up of {warmup:,} steps is as long as the run, which has {steps:,}",
            try_="--set schedule.warmup=0.1 for a tenth of the run, or more steps",
        )
    return replace(config, steps=steps, epochs=None, schedule=replace(config.schedule, warmup=warmup))


def batch_per_process(config: Fit, processes: int) -> int:
    """Return the images per step and process; raise if the batch cannot be divided evenly."""
    if config.batch % processes:
        raise ConfigError(
            f"a batch of {config.batch} cannot be divided by {processes} processes",
            try_=f"--batch {-(-config.batch // processes) * processes}",
        )
    return config.batch // processes


def divisors(number: int) -> list[int]:
    """Return all divisors, largest first."""
    return [divisor for divisor in range(number, 0, -1) if number % divisor == 0]


def largest_divisor(number: int, limit: int) -> int:
    return next(divisor for divisor in divisors(number) if divisor <= max(limit, 1))
