"""Fast on request: each way that this machine has is tried on the model itself, beside the exact one; the fastest that
answers alike is taken, and says what was measured.

Shapes: n pictures, C channels, K classes.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.devices import computing_with, describe_device
from vitkit.predict.classifier import Classifier, probabilities
from vitkit.predict.engine import Engine
from vitkit.predict.engines import Compute, Way, missing_for_onnx, ways
from vitkit.predict.samples import Samples, inside

BATCHES = (1, 8)  # sizes that are timed; what counts is their geometric mean
SECONDS = 0.4  # of timing for a way and size, at least ROUNDS
ROUNDS = 2
WORTH = 1.1  # times as fast as exact, from which it is worth not being exact
PICTURES = 64  # to compare on at most, and
FEWEST = 16  # at least, or as many as
LOOKING = 2.0  # seconds of exact answers allow
LEAST_AGREEING = 0.97  # of the pictures; below, a way is dropped
TIE = 0.05  # answers that the exact model finds as likely as its first, within this, agree
FARTHEST = 0.25  # of a probability

Clock = Callable[[], float]


@dataclass(frozen=True)
class Agreement:
    same: int  # pictures with the same class first
    agree: int  # or with one that is about as likely
    pictures: int
    farthest: float  # difference of any probability
    where: str

    @property
    def enough(self) -> bool:
        return self.agree >= LEAST_AGREEING * self.pictures and self.farthest <= FARTHEST

    @property
    def words(self) -> str:
        ties = f" and about as likely a one for {self.agree - self.same}" if self.agree > self.same else ""
        return (
            f"same answer for {self.same}{ties} of {self.pictures} pictures ({self.where}), "
            f"probabilities within {max(self.farthest, 1e-4):.2g}"
        )


@dataclass(frozen=True)
class Tried:
    """What came of a way."""

    way: Way
    compute: Compute | None  # None where it was given up
    times: tuple[float, ...] = ()  # as fast as exact, for each of BATCHES
    agreement: Agreement | None = None
    failure: str | None = None

    @property
    def score(self) -> float:
        return math.prod(self.times) ** (1 / len(self.times)) if self.times else 0.0

    @property
    def words(self) -> str:
        if self.failure is not None:
            return f"{self.way.words} failed: {self.failure}"
        parts = [self.way.words]
        if self.times:
            parts.append(
                ", ".join(
                    f"{times:.1f} times exact on {batch} picture{'s' * (batch > 1)}"
                    for batch, times in zip(BATCHES, self.times, strict=True)
                )
            )
        if self.agreement is not None:
            parts.append(self.agreement.words)
        return "; ".join(parts)


def quicken(classifier: Classifier, samples: Samples | None = None) -> Engine:
    """The fastest engine that answers as the exact one does, or the exact one. `samples` are pictures of the kind that
    will be asked about; without them, those inside the package serve to compare on."""
    compare = Comparison(classifier, samples if samples is not None else inside(classifier.model))
    best: Tried | None = None
    others: list[str] = []
    for way in ways(classifier):
        if way.slow_to_build and best is not None:
            break
        tried = attempt(way, classifier, compare)
        if tried.compute is not None and tried.score >= max(WORTH, best.score if best is not None else 0.0):
            tried, best = best or tried, tried
        if best is not tried:
            others.append(tried.words)
        del tried  # and its copy of the weights
    engine = _engine(classifier, best, others)
    return engine if classifier.device.type != "cpu" else with_fewer_threads(engine, compare.pictures)


def with_fewer_threads(engine: Engine, pictures: Tensor) -> Engine:
    """Half of them, and half again, as long as that is faster: beside other busy programs, or two to a core, threads
    wait for each other at every layer."""
    threads = torch.get_num_threads()
    while threads > 1:
        fewer = replace(engine, logits=_limited(engine.logits, threads // 2))
        times = race(engine.logits, fewer.logits, pictures)
        if min(times) < WORTH:
            break
        threads //= 2
        gain = ", ".join(f"{one:.1f}" for one in times)
        engine = replace(fewer, words=f"{engine.words}; then with {threads} thread{'s' * (threads > 1)} {gain} times")
    return engine


def _limited(compute: Compute, threads: int) -> Compute:
    def logits(images: Tensor) -> Tensor:
        with computing_with(threads):
            return compute(images)

    return logits


def attempt(way: Way, classifier: Classifier, compare: Comparison) -> Tried:
    """Built, compared, timed; what fails or answers otherwise is given up with a reason, and never a user's error."""
    try:
        compute = way.build(classifier)
        agreement = compare(compute)
        if not agreement.enough:
            return Tried(way, None, agreement=agreement)
        return Tried(way, compute, race(classifier.engine.logits, compute, compare.pictures), agreement)
    except Exception as error:  # compilers and runtimes have kinds of their own
        lines = str(error).strip().splitlines()
        return Tried(way, None, failure=f"{type(error).__name__}{': ' * bool(lines)}{''.join(lines[:1])[:200]}")


class Comparison:
    """The exact model's answers to real pictures, asked once."""

    def __init__(self, classifier: Classifier, samples: Samples) -> None:
        self.classifier, self.where = classifier, samples.words
        exact, seen, answers = classifier.engine.logits, [], []
        shown = _seen(classifier, samples)
        first = next(shown, None)
        if first is None:  # not one of them can be read
            self.where = inside(classifier.model).words
            shown = _seen(classifier, inside(classifier.model))
            first = next(shown)
        exact(first[None])  # the first time is not like the others
        until = time.perf_counter() + LOOKING
        for picture in itertools.chain([first], shown):
            seen.append(picture)
            answers.append(exact(picture[None]))
            if time.perf_counter() > until and len(seen) >= FEWEST:
                break
        self.pictures = torch.stack(seen)  # (n, C, height, width)
        self.exact = probabilities(torch.cat(answers), classifier.multilabel)  # (n, K)

    def __call__(self, compute: Compute) -> Agreement:
        # batches of sizes that nobody prepared for: any must do
        told = torch.cat([compute(part) for part in self.pictures.split(7)])
        return agreement(self.exact, probabilities(told, self.classifier.multilabel), self.where)


def _seen(classifier: Classifier, samples: Samples) -> Iterator[Tensor]:
    """(C, height, width) each."""
    return (classifier.exact(pixels) for _, pixels in samples.spread(PICTURES))


def agreement(exact: NDArray[np.float32], told: NDArray[np.float32], where: str) -> Agreement:
    """(n, K) twice; nan agrees with nothing."""
    rows = np.arange(len(exact))
    first, answer = exact.argmax(axis=1), told.argmax(axis=1)
    finite = np.isfinite(told).all(axis=1)
    close = (exact[rows, first] - exact[rows, answer] <= TIE) & finite
    farthest = float(np.abs(exact - told).max()) if finite.all() else math.inf
    return Agreement(int(((first == answer) & finite).sum()), int(close.sum()), len(exact), farthest, where)


def race(exact: Compute, other: Compute, pictures: Tensor, clock: Clock = time.perf_counter) -> tuple[float, ...]:
    """How many times as fast as exact, for each of BATCHES: they take turns, the best round of each counts, so that
    neither suffers from what else the machine does."""
    return tuple(_race(exact, other, _filled(pictures, batch), clock) for batch in BATCHES)


def _race(exact: Compute, other: Compute, images: Tensor, clock: Clock) -> float:
    best = [math.inf, math.inf]
    other(images)
    until, rounds = clock() + SECONDS, 0
    while rounds < ROUNDS or clock() < until:
        for place, compute in enumerate((exact, other)):
            started = clock()
            compute(images)
            best[place] = min(best[place], clock() - started)
        rounds += 1
    return best[0] / max(best[1], 1e-9)


def _filled(pictures: Tensor, batch: int) -> Tensor:
    return pictures.repeat(-(-batch // len(pictures)), 1, 1, 1)[:batch].contiguous()


def _engine(classifier: Classifier, best: Tried | None, others: Sequence[str]) -> Engine:
    exact = classifier.engine
    if best is None or best.compute is None:
        hint = _hint(classifier)
        why = "; ".join([*others, *([hint] if hint else [])]) or "nothing faster is known for this machine"
        return replace(exact, words=f"{exact.words}, fast was asked for, but: {why}")
    where = describe_device(classifier.device, torch.get_num_threads())
    return Engine(
        best.compute, f"fast: {best.way.words} on {where}{best.words.removeprefix(best.way.words)}", exact.batch
    )


def _hint(classifier: Classifier) -> str:
    missing = missing_for_onnx() if classifier.device.type == "cpu" else []
    return f'{" and ".join(missing)} not installed: pip install "vitkit[export]" for one more way' if missing else ""
