"""An exported file beside the model it was made of, on the same real pictures.

Shapes: n pictures, K classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.export.exported import Exported
from vitkit.predict.classifier import Classifier, probabilities
from vitkit.predict.engine import exact
from vitkit.predict.samples import Pixels, Samples, check_any, other_shapes
from vitkit.progress import Progress, no_progress

TOLERANCE = 1e-4  # of a probability
LIKELY = 0.5  # from which a label of several is given
BATCH = 16

Item = TypeVar("Item")


@dataclass(frozen=True)
class Comparison:
    """`same` and `agree` differ in ties: two classes that the model itself can hardly tell apart."""

    data: str  # which pictures
    pictures: int
    sizes: int  # different ones among them
    same: int  # of the pictures have the same class first; of several labels, the same ones too
    agree: int  # of the pictures have it, or another that is as likely within the tolerance
    largest: float  # difference of any probability
    labelled: int = 0  # pictures whose class is known
    accuracy: float | None = None  # of the model on those, 0 to 1
    file_accuracy: float | None = None  # of the file

    @property
    def equal(self) -> bool:
        return self.largest <= TOLERANCE and self.agree == self.pictures

    @property
    def drop(self) -> float:
        """Points of accuracy lost; where no labels tell, the share of answers that changed, which bounds it."""
        if self.accuracy is not None and self.file_accuracy is not None:
            lost = self.accuracy - self.file_accuracy
        else:
            lost = 1 - self.same / self.pictures
        return round(100 * lost, 6)  # 0.915 - 0.91 is a hair more than half a point, and would be refused as such

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "tolerance": TOLERANCE}

    @property
    def words(self) -> str:
        return (
            f"{self.same:,} of {self.pictures:,} answers the same, probabilities within {self.largest:.1e} "
            f"({self.sizes:,} sizes; {self.data})"
        )


def compare(classifier: Classifier, file: Exported, samples: Samples, progress: Progress = no_progress) -> Comparison:
    """The pictures as they are, and parts of the first few in shapes that they may not have."""
    engine = exact(classifier.model, torch.device("cpu"))
    truth: list[NDArray[np.float32]] = []
    told: list[NDArray[np.float32]] = []
    labels: list[int] = []
    sizes: set[tuple[int, ...]] = set()
    for batch in progress(_batches(_all(samples), BATCH), -(-len(samples) // BATCH), "comparing"):
        pictures = [pixels for _, pixels in batch]
        seen = torch.stack([classifier.exact(pixels) for pixels in pictures])
        truth.append(probabilities(engine.logits(seen), classifier.multilabel))
        told.append(file.probabilities(pictures))
        labels += [label for label, _ in batch]
        sizes |= {pixels.shape[:2] for pixels in pictures}
    check_any(samples, len(labels))
    return judge(
        np.concatenate(truth), np.concatenate(told), np.array(labels), samples.words, len(sizes), classifier.multilabel
    )


def judge(
    truth: NDArray[np.float32],
    told: NDArray[np.float32],
    labels: NDArray[np.int64],
    data: str,
    sizes: int,
    multilabel: bool = False,
) -> Comparison:
    """(n, K) twice, and (n,) classes, -1 where they are not known."""
    rows = np.arange(len(truth))
    best, answer = truth.argmax(axis=1), told.argmax(axis=1)
    # nan compares with nothing, and so never passes for close
    close = truth[rows, best] - truth[rows, answer] <= TOLERANCE
    same = best == answer
    if multilabel:  # a label that comes or goes is another answer, wherever it stands
        same &= ((truth >= LIKELY) == (told >= LIKELY)).all(axis=1)
    known = labels >= 0
    accuracy, file_accuracy = (
        float((given == labels)[known].mean()) if known.any() else None for given in (best, answer)
    )
    return Comparison(
        data=data,
        pictures=len(truth),
        sizes=sizes,
        same=int(same.sum()),
        agree=int(close.sum()),
        largest=float(np.abs(truth - told).max()),
        labelled=int(known.sum()),
        accuracy=accuracy,
        file_accuracy=file_accuracy,
    )


def _all(samples: Samples) -> Iterator[tuple[int, Pixels]]:
    """With the labels that are known: of whole pictures, in data with one label each."""
    one_each = samples.split.labels.ndim == 1
    for number, (index, pixels) in enumerate(samples):
        yield int(samples.split.labels[index]) if one_each else -1, pixels
        if number == 0:
            yield from ((-1, part) for part in other_shapes(pixels))


def _batches(items: Iterable[Item], size: int) -> Iterator[Sequence[Item]]:
    waiting = iter(items)
    while batch := list(islice(waiting, size)):
        yield batch
