"""The images that are inspected: files or folders → model inputs; broken files are skipped and reported.

Shapes: C channels, (height, width) of the model's input.
"""

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.data.bounded_read import read_image_file
from vitkit.data.decode import decode
from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.image_paths import find_images
from vitkit.data.transforms import EvalTransform
from vitkit.errors import ConfigError, DecodeError
from vitkit.model.build import Model
from vitkit.storage.urls import last_part, redacted

MEASURED_IMAGES = 128  # as many as in the paper; of a larger folder, evenly spaced ones


@dataclass(frozen=True)
class InspectedImage:
    name: str
    resized: Tensor  # (C, height, width) on 0 to 255

    @property
    def rgb(self) -> NDArray[np.uint8]:
        """Return (height, width, 3): of one or two channels the first, of more than three the first three."""
        channels = self.resized[:3] if len(self.resized) >= 3 else self.resized[:1].expand(3, -1, -1)
        return channels.round().clamp(0, 255).byte().permute(1, 2, 0).numpy()


@dataclass
class ImageSet:
    transform: EvalTransform
    images: list[InspectedImage]
    total: int  # of which `images` were chosen
    skipped: dict[str, str] = field(default_factory=dict)  # path → reason

    def batch(self, images: Sequence[InspectedImage]) -> Tensor:
        return torch.stack([self.transform.normalise(image.resized) for image in images])

    def batches(self, size: int) -> Iterator[Tensor]:
        for start in range(0, len(self.images), size):
            yield self.batch(self.images[start : start + size])

    def evenly_spaced(self, count: int) -> list[InspectedImage]:
        return [self.images[index] for index in _evenly_spaced(len(self.images), count)]


def open_images(model: Model, sources: Sequence[str | os.PathLike[str]], most: int = MEASURED_IMAGES) -> ImageSet:
    """Read and resize the images for the model, at most `most` of them."""
    paths = find_images(sources)
    transform = EvalTransform(image=model.config.image, preprocessing=model.metadata.preprocessing)
    image_set = ImageSet(transform, [], len(paths))
    for path in (paths[index] for index in _evenly_spaced(len(paths), most)):
        try:
            pixels = decode(read_image_file(path), channels=model.config.channels)
        except (DecodeError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            image_set.skipped[redacted(str(path))] = reason or "unreadable"
            continue
        image_set.images.append(InspectedImage(last_part(str(path)), transform.resize_only(pixels)))
    if not image_set.images:
        raise DataError(
            "no image could be read.",
            such_as=[f"{name}: {reason}" for name, reason in [*image_set.skipped.items()][:5]],
        )
    return image_set


def refuse_output_among_images(folder: Path, sources: Sequence[str]) -> None:
    """Raise a ConfigError if the next inspection of the same images would read the figures as images."""
    for source in sources:
        if _contains(source, folder.resolve()):
            raise ConfigError(
                f"{folder} is inside the images: the next inspection would read the figures as images.",
                images=source,
                try_="--out DIR, a folder outside of them",
            )


def _contains(source: str, folder: Path) -> bool:
    """Return whether `find_images` would read images of this folder: a source is a folder tree, a pattern or a file."""
    if os.path.isdir(source):
        return folder.is_relative_to(Path(source).resolve())
    if not glob.has_magic(source) or os.path.lexists(source):
        return folder == Path(source).parent.resolve()
    if "**" in Path(source).parts:
        above = takewhile(lambda part: not glob.has_magic(part), Path(source).parts)
        return folder.is_relative_to(Path(*above).resolve())
    return folder in {Path(match).parent.resolve() for match in glob.glob(source)}


def _evenly_spaced(count: int, most: int) -> list[int]:
    """Return at most `most` indices over the full range, both ends included."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()
