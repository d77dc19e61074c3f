"""Real pictures to compare an exported model on: those of the run's own data, of data that the user names, or, where
there are none, those inside the package. What they are is said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.decode import decode
from vitkit.data.sources.base import Data, DataError, Split
from vitkit.data.sources.fashion import open_fashion
from vitkit.data.sources.open import open_data
from vitkit.data.sources.splits import scoring_split
from vitkit.errors import ConfigError, DecodeError, VitkitError
from vitkit.evaluate.matching import match
from vitkit.evaluate.unseen import unseen
from vitkit.model.build import Model
from vitkit.run_folder import CONFIG, RunFolder

Pixels = NDArray[Any]  # (height, width, channels), uint8 or float32 on 0 to 255


@dataclass(frozen=True)
class Samples:
    words: str  # "photos/, test"
    split: Split  # labels in the model's classes, -1 where they are not known
    channels: int
    others: Split | None = None  # for calibration: pictures of the same kind that are not asked about

    @property
    def labelled(self) -> bool:
        return self.split.labelled

    def spread(self, count: int) -> Samples:
        """So many of them, evenly over the split, which is often sorted by class."""
        return replace(self, split=_spread(self.split, count))

    def __len__(self) -> int:
        return len(self.split)

    def __iter__(self) -> Iterator[tuple[int, Pixels]]:
        """Index and pixels of those that can be read; what cannot has no answer to compare."""
        for index in range(len(self.split)):
            pixels = _pixels(self.split, index, self.channels)
            if pixels is not None:
                yield index, pixels

    def calibration(self, count: int) -> list[Pixels]:
        source = _spread(self.others if self.others is not None else self.split, count)
        found = (_pixels(source, index, self.channels) for index in range(len(source)))
        return [pixels for pixels in found if pixels is not None]


def find_samples(run: str, model: Model, data: str | None = None) -> Samples:
    if data is not None:
        return _of(run, model, open_data(data))
    folder = RunFolder.of(run)
    if folder is not None and (folder.path / CONFIG).is_file():
        config = folder.config()
        try:
            return _of(run, model, open_data(config.data, label=config.label))
        except (DataError, OSError) as error:
            gone = str(error).splitlines()[0]
            return inside(model, f"; the run's own data cannot be used: {gone}")
    return inside(model)


def _of(run: str, model: Model, data: Data) -> Samples:
    data = unseen(run, data, None)
    try:
        data = match(model, data).data
        name = scoring_split(data)
    except VitkitError:  # no labels, or none that the model knows: the pictures serve all the same
        name = next((name for name in ("test", "val", "all") if name in data.splits), next(iter(data.splits)))
        data.splits[name] = _unlabelled(data.splits[name])
    fitted = next((data.splits[name] for name in ("train", "trainval") if name in data.splits), None)
    if len(data.splits[name]) == 0:
        raise DataError(f"{data.name}, {name}, has no pictures.")
    return Samples(f"{data.name}, {name}", data.splits[name], model.config.channels, fitted)


def inside(model: Model, why: str = "") -> Samples:
    """Pictures that a model was hardly made for: numbers can be compared on them, answers are not scored."""
    split = open_fashion().splits["test"]
    return Samples(f"fashion, inside the package{why}", _unlabelled(split), model.config.channels)


def _unlabelled(split: Split) -> Split:
    return replace(split, labels=np.full(len(split), -1))


def _spread(split: Split, count: int) -> Split:
    return split.select(np.linspace(0, len(split) - 1, min(count, len(split))).round())


def _pixels(split: Split, index: int, channels: int) -> Pixels | None:
    try:
        return decode(split.read(index), channels=channels)
    except (DecodeError, DataError):
        return _stacked(split, index, channels)


def _stacked(split: Split, index: int, channels: int) -> Pixels | None:
    """Grey pictures as the bands of a model that takes another number of them than any picture at hand has."""
    if channels in (1, 3):
        return None
    try:
        bands = [decode(split.read((index + band) % len(split)), channels=1) for band in range(channels)]
        return np.concatenate(bands, axis=2)
    except (DecodeError, DataError, ValueError):
        return None


def other_shapes(pixels: Pixels) -> list[Pixels]:
    """Parts of a picture that are wide, high, a line, a point, and one that is larger: sizes that data may lack."""
    height, width = pixels.shape[:2]
    return [
        np.ascontiguousarray(part)
        for part in (
            pixels[: max(1, height // 3)],
            pixels[:, : max(1, width // 4)],
            pixels[height // 2 : height // 2 + 1],
            pixels[:, width // 2 : width // 2 + 1],
            pixels[:1, :1],
            pixels.repeat(2, axis=0).repeat(3, axis=1)[:-1],
        )
    ]


def check_any(samples: Samples, compared: int) -> None:
    if compared == 0:
        raise ConfigError(
            f"no picture of {samples.words} could be read; there is nothing to compare on.",
            try_="--data a folder of pictures",
        )
