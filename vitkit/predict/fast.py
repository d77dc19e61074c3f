"""The choice of a fast engine: each candidate of this machine is compared with the exact engine on real images and
timed on the model itself; the fastest that agrees is taken, and its description says what was measured.

Classifiers agree in classes and probabilities, embedding models in the direction of their vectors.

Shapes: n images, C channels, K classes or numbers of a vector.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from vitkit.compute.onnx_session import missing_packages
from vitkit.devices import describe_device, use_threads
from vitkit.model.build import Model
from vitkit.predict.agreement import Agreement, VectorAgreement, measure_agreement, measure_vector_agreement
from vitkit.predict.engines import Compute, Engine, EngineCandidate, engine_candidates, exact_engine
from vitkit.predict.inputs import preprocess
from vitkit.predict.prediction import to_probabilities
from vitkit.predict.samples import Samples, package_samples

BATCHES = (1, 8)  # the batch sizes that are timed; the geometric mean of the speedups counts
SECONDS = 0.4  # of timing for a candidate and batch size, with at least
ROUNDS = 2  # rounds
MIN_SPEEDUP = 1.1  # over exact, below which inexact results are not worth it
MAX_IMAGES = 64  # to compare on, and at least
MIN_IMAGES = 16  # or as many as the exact engine computes in
COMPARE_SECONDS = 2.0  # seconds
MIN_AGREEING = 0.97  # of the images
TIE = 0.05  # classes that the exact model finds as likely as its first, within this, agree
MAX_DIFFERENCE = 0.25  # of a probability
MIN_COSINE = 0.99  # of the vectors of each image

Clock = Callable[[], float]
Measure = Callable[[Tensor, Tensor], Agreement | VectorAgreement]  # of the exact outputs and the others


@dataclass(frozen=True)
class EngineTrial:
    """The result of trying a candidate."""

    candidate: EngineCandidate
    compute: Compute | None  # None if it failed or does not agree
    speedups: tuple[float, ...] = ()  # over exact, for each of BATCHES
    agreement: Agreement | VectorAgreement | None = None
    data: str = ""  # the images that it was compared on
    failure: str | None = None

    @property
    def score(self) -> float:
        return math.prod(self.speedups) ** (1 / len(self.speedups)) if self.speedups else 0.0

    @property
    def description(self) -> str:
        return self.candidate.description + self.measurements

    @property
    def measurements(self) -> str:
        if self.failure is not None:
            return f" failed: {self.failure}"
        timed = ", ".join(
            f"{speedup:.1f} times exact on {batch} image{'s' * (batch > 1)}"
            for batch, speedup in zip(BATCHES, self.speedups, strict=False)
        )
        timed = f"the model alone: {timed}" if timed else ""  # an image is decoded and resized at the same speed
        compared = describe_agreement(self.agreement, self.data) if self.agreement is not None else ""
        return "".join(f"; {text}" for text in (timed, compared) if text)


def fastest_engine(
    model: Model, device: torch.device, *, multilabel: bool = False, samples: Samples | None = None
) -> Engine:
    """Return the fastest engine that agrees with the exact one, or the exact one.

    The outputs of a model without classes are vectors, and are compared as such.
    `samples` are images of the kind that will be predicted; without them, those inside the package are compared on.
    """
    exact, samples = exact_engine(model, device), package_samples(model) if samples is None else samples
    measure = partial(measure_predictions, multilabel=multilabel) if model.config.classes else measure_vectors
    reference = Reference(exact, model, samples, measure)
    best: EngineTrial | None = None
    rejected: list[str] = []
    for candidate in engine_candidates(model, device):
        if candidate.slow_to_build and best is not None:
            break
        trial = try_candidate(candidate, exact, reference)
        if trial.compute is not None and trial.score >= max(MIN_SPEEDUP, best.score if best is not None else 0.0):
            trial, best = best or trial, trial
        if best is not trial:
            rejected.append(trial.description)
        del trial  # and its copy of the weights
    if best is not None and best.compute is not None:
        where = describe_device(device, torch.get_num_threads())
        description = f"fast: {best.candidate.description} on {where}{best.measurements}"
        engine = Engine(best.compute, description, exact.batch)
    else:
        reasons = "; ".join([*rejected, *_hints(device)]) or "nothing faster is known for this machine"
        engine = replace(exact, description=f"{exact.description}, because --fast found nothing better: {reasons}")
    return engine if device.type != "cpu" else with_fewer_threads(engine, reference.images)


def try_candidate(candidate: EngineCandidate, exact: Engine, reference: Reference) -> EngineTrial:
    """Build, compare and time a candidate; a failure becomes a reason in the trial and never an error."""
    try:
        compute = candidate.build()
        agreement = reference.compare(compute)
        if not agrees(agreement):
            return EngineTrial(candidate, None, agreement=agreement, data=reference.data)
        speedups = measure_speedups(exact.logits, compute, reference.images)
        return EngineTrial(candidate, compute, speedups, agreement, reference.data)
    except Exception as error:  # compilers and runtimes raise classes of their own
        lines = str(error).strip().splitlines()
        failure = f"{type(error).__name__}{': ' * bool(lines)}{''.join(lines[:1])[:200]}"
        return EngineTrial(candidate, None, failure=failure)


class Reference:
    """The exact engine's logits or vectors for real images, computed once."""

    def __init__(self, exact: Engine, model: Model, samples: Samples, measure: Measure) -> None:
        self.measure, self.data = measure, samples.description
        preprocessed = _preprocessed(model, samples)
        first = next(preprocessed, None)
        if first is None:  # not one of them can be read
            self.data = package_samples(model).description
            preprocessed = _preprocessed(model, package_samples(model))
            first = next(preprocessed)
        exact.logits(first[None])  # warm up
        images, logits = [], []
        until = time.perf_counter() + COMPARE_SECONDS
        for image in itertools.chain([first], preprocessed):
            images.append(image)
            logits.append(exact.logits(image[None]).cpu())
            if time.perf_counter() > until and len(images) >= MIN_IMAGES:
                break
        self.images = torch.stack(images)  # (n, C, height, width)
        self.exact = torch.cat(logits)  # (n, K)

    def compare(self, compute: Compute) -> Agreement | VectorAgreement:
        # a batch size that nothing is prepared for: any has to work
        return self.measure(self.exact, torch.cat([compute(batch).cpu() for batch in self.images.split(7)]))


def measure_predictions(exact: Tensor, other: Tensor, *, multilabel: bool) -> Agreement:
    """Compare (n, K) logits as probabilities."""
    return measure_agreement(to_probabilities(exact, multilabel), to_probabilities(other, multilabel), tie=TIE)


def measure_vectors(exact: Tensor, other: Tensor) -> VectorAgreement:
    return measure_vector_agreement(exact.numpy(), other.numpy())


def _preprocessed(model: Model, samples: Samples) -> Iterator[Tensor]:
    """Yield (C, height, width) each."""
    transform = preprocess(model).transform
    return (transform(pixels) for _, pixels in samples.spread(MAX_IMAGES))


def agrees(agreement: Agreement | VectorAgreement) -> bool:
    if isinstance(agreement, VectorAgreement):
        return agreement.lowest >= MIN_COSINE
    return agreement.agree >= MIN_AGREEING * agreement.images and agreement.largest <= MAX_DIFFERENCE


def describe_agreement(agreement: Agreement | VectorAgreement, data: str) -> str:
    if isinstance(agreement, VectorAgreement):
        return f"cosine similarity {agreement.lowest:.4f} or more on {agreement.images} images ({data})"
    tied = agreement.agree - agreement.same
    ties = f" and one about as likely for {tied}" if tied > 0 else ""
    return (
        f"same class for {agreement.same}{ties} of {agreement.images} images ({data}), "
        f"probabilities within {max(agreement.largest, 1e-4):.2g}"
    )


def with_fewer_threads(engine: Engine, images: Tensor) -> Engine:
    """Halve the number of threads as long as that is faster.

    Next to other busy programs, or two to a core, threads wait for each other at every layer.
    """
    threads = torch.get_num_threads()
    while threads > 1:
        fewer = replace(engine, logits=_limited(engine.logits, threads // 2))
        speedups = measure_speedups(engine.logits, fewer.logits, images)
        if min(speedups) < MIN_SPEEDUP:
            break
        threads //= 2
        gain = ", ".join(f"{speedup:.1f}" for speedup in speedups)
        description = f"{engine.description}; then with {threads} thread{'s' * (threads > 1)} {gain} times"
        engine = replace(fewer, description=description)
    return engine


def _limited(compute: Compute, threads: int) -> Compute:
    def logits(images: Tensor) -> Tensor:
        with use_threads(threads):
            return compute(images)

    return logits


def measure_speedups(
    exact: Compute, other: Compute, images: Tensor, clock: Clock = time.perf_counter
) -> tuple[float, ...]:
    """Return how many times as fast as exact the other is, for each of BATCHES.

    They take turns and the best round of each counts, so that neither suffers from what else the machine does.
    """
    return tuple(_speedup(exact, other, _repeated(images, batch), clock) for batch in BATCHES)


def _speedup(exact: Compute, other: Compute, images: Tensor, clock: Clock) -> float:
    best = [math.inf, math.inf]
    other(images)
    until, rounds = clock() + SECONDS, 0
    while rounds < ROUNDS or clock() < until:
        for index, compute in enumerate((exact, other)):
            started = clock()
            compute(images).cpu()  # waits for a GPU
            best[index] = min(best[index], clock() - started)
        rounds += 1
    return best[0] / max(best[1], 1e-9)


def _repeated(images: Tensor, batch: int) -> Tensor:
    return images.repeat(-(-batch // len(images)), 1, 1, 1)[:batch].contiguous()


def _hints(device: torch.device) -> Sequence[str]:
    missing = missing_packages() if device.type == "cpu" else []
    return [f'{" and ".join(missing)} not installed: pip install "vitkit[export]" for one more engine'] * bool(missing)
