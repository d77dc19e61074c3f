"""The comparison of an exported file with its model, on the same real images.

Shapes: n images, K classes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.data.sources.dataset import Split
from vitkit.data.sparse_labels import SparseLabels
from vitkit.export.exported import ExportedModel
from vitkit.predict.agreement import Agreement, measure_agreement
from vitkit.predict.classifier import Classifier
from vitkit.predict.engines import exact_engine
from vitkit.predict.prediction import to_probabilities
from vitkit.predict.samples import Pixels, Samples, check_not_empty, other_shapes
from vitkit.progress import Progress, no_progress

TOLERANCE = 1e-4  # of a probability
BATCH = 16

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Comparison(Agreement):
    """The agreement of a file with its model, and the accuracy of both on the images whose class is known."""

    data: str  # which images
    sizes: int  # different sizes among them
    labelled: int = 0  # images whose class is known
    accuracy: float | None = None  # of the model on those, 0 to 1
    file_accuracy: float | None = None  # of the file

    @property
    def equal(self) -> bool:
        return self.largest <= TOLERANCE and self.agree == self.images

    @property
    def drop(self) -> float:
        """Points of accuracy lost; without labels, the share of predictions that changed, which is an upper bound."""
        if self.accuracy is not None and self.file_accuracy is not None:
            lost = self.accuracy - self.file_accuracy
        else:
            lost = 1 - self.same / self.images
        return round(100 * lost, 6)  # 0.915 - 0.91 is a hair more than half a point, and would be refused as such

    @property
    def allowed(self) -> str:
        return f"{TOLERANCE:.0e} of a probability, and the same class first"

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "tolerance": TOLERANCE}

    @property
    def description(self) -> str:
        return (
            f"{self.same:,} of {self.images:,} predictions the same, probabilities within {self.largest:.1e} "
            f"({self.sizes:,} sizes; {self.data})"
        )


def compare(
    classifier: Classifier, file: ExportedModel, samples: Samples, progress: Progress = no_progress
) -> Comparison:
    """Compare a file with its model on the samples, and on crops of the first in sizes that they may lack."""
    engine = exact_engine(classifier.model, torch.device("cpu"))
    exact: list[NDArray[np.float32]] = []
    exported: list[NDArray[np.float32]] = []
    labels: list[int] = []
    sizes: set[tuple[int, ...]] = set()
    decoded = progress(samples, len(samples), "comparing")
    known = _labels(samples.split)
    for batch in batches(with_crops(decoded), BATCH):
        images = [pixels for _, pixels in batch]
        preprocessed = torch.stack([classifier.transform(pixels) for pixels in images])
        exact.append(to_probabilities(engine.logits(preprocessed), classifier.multilabel))
        exported.append(file.probabilities(images))
        labels += [-1 if index is None else int(known[index]) for index, _ in batch]
        sizes |= {pixels.shape[:2] for pixels in images}
    check_not_empty(samples, len(labels))
    return compare_probabilities(
        np.concatenate(exact),
        np.concatenate(exported),
        np.array(labels),
        samples.description,
        len(sizes),
        classifier.thresholds,
    )


def compare_probabilities(
    exact: NDArray[np.float32],
    exported: NDArray[np.float32],
    labels: NDArray[np.int64],
    data: str,
    sizes: int,
    thresholds: Sequence[float] | None = None,
) -> Comparison:
    """Compare two (n, K) tables; labels are (n,) class indices, -1 if not known."""
    agreement = measure_agreement(exact, exported, tie=TOLERANCE, thresholds=thresholds)
    known = labels >= 0
    accuracy, file_accuracy = (
        float((probabilities.argmax(axis=1) == labels)[known].mean()) if known.any() else None
        for probabilities in (exact, exported)
    )
    return Comparison(
        **asdict(agreement),
        data=data,
        sizes=sizes,
        labelled=int(known.sum()),
        accuracy=accuracy,
        file_accuracy=file_accuracy,
    )


def _labels(split: Split) -> NDArray[np.int64]:
    """Return the class of each image: -1 where it is not known, and for data with several labels an image."""
    return np.full(len(split), -1) if isinstance(split.labels, SparseLabels) else split.labels


def with_crops(decoded: Iterable[tuple[int, Pixels]]) -> Iterator[tuple[int | None, Pixels]]:
    """Yield index and pixels of images, and crops of the first in other sizes, which have no index."""
    for number, (index, pixels) in enumerate(decoded):
        yield index, pixels
        if number == 0:
            yield from ((None, crop) for crop in other_shapes(pixels))


def batches(items: Iterable[Item], size: int) -> Iterator[Sequence[Item]]:
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch
