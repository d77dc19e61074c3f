"""The pictures that are looked at: files or folders → what the model sees of them; what cannot be read is named."""

from __future__ import annotations

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

from vitkit.data.decode import decode
from vitkit.data.sources.base import DataError
from vitkit.data.sources.named import find
from vitkit.data.transforms import Exact
from vitkit.errors import ConfigError, DecodeError
from vitkit.model.build import Model

MOST = 128  # pictures that are measured, as many as in the paper; of a larger folder, evenly spread ones


@dataclass(frozen=True)
class Picture:
    name: str
    framed: Tensor  # (C, height, width) on 0 to 255

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """(height, width, 3) to look at; of one or two bands the first, of more than three the first three."""
        shown = self.framed[:3] if len(self.framed) >= 3 else self.framed[:1].expand(3, -1, -1)
        return shown.round().clamp(0, 255).byte().permute(1, 2, 0).numpy()


@dataclass
class Gallery:
    exact: Exact
    pictures: list[Picture]
    found: int  # before choosing
    skipped: dict[str, str] = field(default_factory=dict)  # name → reason

    def images(self, chosen: Sequence[Picture]) -> Tensor:
        return torch.stack([self.exact.normalise(picture.framed) for picture in chosen])

    def batches(self, size: int) -> Iterator[Tensor]:
        for start in range(0, len(self.pictures), size):
            yield self.images(self.pictures[start : start + size])

    def spread(self, count: int) -> list[Picture]:
        return [self.pictures[index] for index in _spread(len(self.pictures), count)]


def open_gallery(model: Model, sources: Sequence[str | os.PathLike[str]], most: int = MOST) -> Gallery:
    exact = Exact(image=model.config.image, preprocessing=model.metadata.preprocessing)
    paths = find(sources)
    gallery = Gallery(exact, [], len(paths))
    for path in (paths[index] for index in _spread(len(paths), most)):
        try:
            pixels = decode(path.read_bytes(), channels=model.config.channels)
        except (DecodeError, OSError) as error:
            gallery.skipped[str(path)] = (error.strerror if isinstance(error, OSError) else str(error)) or "unreadable"
            continue
        gallery.pictures.append(Picture(path.name, exact.frame(pixels)))
    if not gallery.pictures:
        raise DataError(
            "no picture could be used.",
            such_as=[f"{name}: {reason}" for name, reason in [*gallery.skipped.items()][:5]],
        )
    return gallery


def refuse_among(folder: Path, sources: Sequence[str]) -> None:
    """Figures in a folder that pictures come from would be pictures at the next look."""
    for source in sources:
        if _is_among(folder.resolve(), source):
            raise ConfigError(
                f"{folder} is where pictures come from: the next look would take the figures for some.",
                pictures=source,
                try_="--out DIR, a folder outside of them",
            )


def _is_among(folder: Path, source: str) -> bool:
    """As `find` reads a source: a folder with all that is below it, a pattern, a file."""
    if os.path.isdir(source):
        return folder.is_relative_to(Path(source).resolve())
    if not glob.has_magic(source) or os.path.lexists(source):
        return folder == Path(source).parent.resolve()
    if "**" in Path(source).parts:
        above = takewhile(lambda part: not glob.has_magic(part), Path(source).parts)
        return folder.is_relative_to(Path(*above).resolve())
    return folder in {Path(match).parent.resolve() for match in glob.glob(source)}


def _spread(count: int, most: int) -> list[int]:
    """Evenly over the whole range, ends included."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()
