"""Compute a model's logits for every image of a split, with the preprocessing that belongs to its weights.

Shapes: n images, K classes.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vitkit import devices
from vitkit.compute.batch_size import inference_batch
from vitkit.compute.inference import Precision, for_inference
from vitkit.compute.kept_inputs import KeptInputs
from vitkit.compute.pipeline import PART, compute_batches, lent_parts
from vitkit.compute.sharding import is_sharded
from vitkit.data.batch import Batch
from vitkit.data.evaluation_batches import checked_batches, sequential_batches
from vitkit.data.failures import MAX_FAILED
from vitkit.data.sources.dataset import Split
from vitkit.data.sparse_labels import SparseLabels
from vitkit.data.split_dataset import SplitDataset
from vitkit.data.transforms import EvalTransform
from vitkit.model.build import Model
from vitkit.progress import Progress, no_progress

FEW_IMAGES = 1_000  # decoded in the time that fifteen processes take to start and to end


@dataclass(frozen=True)
class SplitLogits:
    """The logits of a split's images that could be decoded, with their labels."""

    logits: Tensor  # (n, K) float32, on the CPU
    labels: Tensor | SparseLabels  # (n,) class indices, -1 where unlabelled; or those of multi-label data
    indices: Tensor  # (n,) of the images in the split
    failures: dict[int, str]  # index → why it could not be decoded


class CollectLogits(Protocol):
    """A function like `collect_logits`."""

    def __call__(
        self,
        model: Model,
        split: Split,
        *,
        device: torch.device | str,
        precision: Precision,
        batch: int | None,
        workers: int,
        max_failed: float,
        progress: Progress,
    ) -> SplitLogits: ...


def collect_logits(
    model: Model,
    split: Split,
    *,
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
    batch: int | None = None,
    workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
    max_failed: float = MAX_FAILED,
    progress: Progress = no_progress,
    kept: KeptInputs | None = None,
) -> SplitLogits:
    """Run the model, already on the device, over a split in evaluation mode; its training mode is restored after.

    With `kept`, a second pass over the same split finds its inputs on the device.
    """
    device = torch.device(device)
    batch = batch or inference_batch(model, device)
    dataset = _dataset(model, split)
    share = (rank, world_size, _part(batch))
    in_threads = device.type == "cuda" and len(split) <= FEW_IMAGES  # on a CPU they would compete with the model

    def load_all() -> Iterator[Batch]:
        return sequential_batches(
            dataset,
            batch,
            workers=workers,
            rank=rank,
            world_size=world_size,
            pin_memory=device.type == "cuda",
            part=PART,
            lend=lent_parts(batch),
            threads=workers if in_threads else 0,
        )

    def load_rest() -> Iterator[Batch]:
        """Yield the batches that were loaded ahead, then those that were not."""
        ahead, taken = None if kept is None else kept.take_ahead(dataset, device, share), 0
        for loaded in ahead.take() if ahead is not None else ():
            taken += 1
            yield loaded
        if ahead is None or not ahead.complete:
            yield from itertools.islice(load_all(), taken, None)

    def load() -> Iterator[Batch]:
        return checked_batches(load_rest(), split, max_failed)

    batches = load() if kept is None else kept.batches(dataset, device, share, load)
    images_of_rank = -(-(len(split) - rank) // world_size)
    logits, indices = [], [torch.empty(0).long()]
    failures: dict[int, str] = {}
    training = model.training
    model.eval()
    try:
        forward = forward_function(model, precision)
        loaded = progress(batches, images_of_rank, "evaluating", Batch.images_read)
        with devices.use_threads(1) if in_threads else nullcontext():  # of torch, under each of ours
            for computed in compute_batches(loaded, batch, lambda images: (forward(images).float(),), device):
                failures.update(computed.failures)
                if computed.outputs is not None:
                    logits.append(computed.outputs[0])
                    indices.append(torch.from_numpy(computed.indices))
    finally:
        model.train(training)
    empty, read = torch.empty(0, model.config.classes), torch.cat(indices)
    labels = split.labels[read.numpy()]
    return SplitLogits(
        torch.cat(logits) if logits else empty,
        labels if isinstance(labels, SparseLabels) else torch.from_numpy(labels),
        read,
        failures,
    )


def load_inputs_ahead(model: Model, split: Split, *, device: torch.device, threads: int, kept: KeptInputs) -> None:
    """Load the inputs that `collect_logits` will take from `kept`, in threads beside the one that calls this."""
    batch = inference_batch(model, device)
    dataset = _dataset(model, split)
    batches = sequential_batches(dataset, batch, part=PART, threads=threads)
    kept.load_ahead(dataset, device, (0, 1, _part(batch)), batches)


def _dataset(model: Model, split: Split) -> SplitDataset:
    transform = EvalTransform(image=model.config.image, preprocessing=model.metadata.preprocessing)
    return SplitDataset(split=split, transform=transform, channels=model.config.channels)


def _part(batch: int) -> int:
    """Return the images of a part, which determine the batches: batches of any multiple are made of the same parts."""
    return PART if batch % PART == 0 else batch


def forward_function(model: Model, precision: Precision) -> Callable[[Tensor], Tensor]:
    """Return the forward pass in a precision; FSDP shards cannot be copied, and cast by themselves."""
    if any(map(is_sharded, model.modules())):
        return lambda images: model(images.bfloat16() if precision == "bf16" else images)
    return for_inference(model, precision)
