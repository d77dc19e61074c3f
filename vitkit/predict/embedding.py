"""Images in any form → their representation, the vector before the logits, as `vitkit probe` uses it.

Shapes: n images, C channels, D width of the representation.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.compute.inference import Precision, for_inference
from vitkit.data.loader import Batch, SplitDataset, sequential_batches
from vitkit.data.sources.dataset import DataError
from vitkit.model.build import Model
from vitkit.predict.inputs import ImageInput, as_split, preprocess
from vitkit.progress import Progress, no_progress
from vitkit.text import counted

BATCH = 64
SHOWN = 5  # unreadable images that the error names


def embed_images(
    model: Model,
    images: Sequence[ImageInput],
    *,
    precision: Precision = "fp32",
    batch: int = BATCH,
    workers: int = 0,
    progress: Progress = no_progress,
) -> NDArray[np.float32]:
    """Return (n, D), a row for each image in their order; an unreadable image is an error that names it."""
    if not len(images):
        raise DataError("no images named.", try_="files, a folder of them, or a pattern")
    device, model_input = next(model.parameters()).device, preprocess(model)
    split = as_split(images)
    dataset = SplitDataset(split=split, transform=model_input.transform, channels=model_input.channels)
    batches = sequential_batches(dataset, batch, workers=workers, pin_memory=device.type == "cuda")
    represent = for_inference(model, precision).represent
    rows: list[NDArray[np.float32]] = []
    failures: list[str] = []
    with torch.inference_mode():
        for loaded in progress(batches, len(split), "embedding", Batch.images_read):
            failures += [f"{split.keys[index]}: {reason}" for index, reason in loaded.failures]
            if len(loaded.images) and not failures:
                rows.append(represent(loaded.images.to(device, non_blocking=True)).cpu().numpy())
    if failures:  # a missing row would shift all later ones against their labels
        more = [f"… and {len(failures) - SHOWN:,} more"] if len(failures) > SHOWN else []
        raise DataError(
            f"{len(failures):,} of {counted(len(split), 'image')} cannot be read, so they have no features.",
            such_as=[*failures[:SHOWN], *more],
            try_="leave them out; vitkit.check lists the unreadable images of a folder",
        )
    return np.concatenate(rows)
