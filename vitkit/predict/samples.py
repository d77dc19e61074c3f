"""Real images to compare an engine or an exported model on: from the run's own data, from data that the user names, or
from inside the package; their description says which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.decode import decode
from vitkit.data.sources.dataset import Data, DataError, Split
from vitkit.data.sources.fashion import open_fashion
from vitkit.data.sources.open import open_data
from vitkit.data.sources.splits import scoring_split
from vitkit.errors import ConfigError, DecodeError, VitkitError
from vitkit.evaluate.held_out import data_to_score
from vitkit.evaluate.matching import match_classes
from vitkit.model.build import Model
from vitkit.run_folder import CONFIG, RunFolder

Pixels = NDArray[Any]  # (height, width, channels), uint8 or float32 on 0 to 255


@dataclass(frozen=True)
class Samples:
    description: str  # "photos/, test"
    split: Split  # labels in the model's classes, -1 where they are not known
    channels: int
    calibration_split: Split | None = None  # other images of the same kind

    @property
    def labelled(self) -> bool:
        return self.split.labelled

    def spread(self, count: int) -> Samples:
        """Return `count` of the samples, evenly spaced over the split, which is often sorted by class."""
        return replace(self, split=_spread(self.split, count))

    def __len__(self) -> int:
        return len(self.split)

    def __iter__(self) -> Iterator[tuple[int, Pixels]]:
        """Yield index and pixels of the images that can be read."""
        for index in range(len(self.split)):
            pixels = _pixels(self.split, index, self.channels)
            if pixels is not None:
                yield index, pixels

    def calibration(self, count: int) -> list[Pixels]:
        source = _spread(self.calibration_split if self.calibration_split is not None else self.split, count)
        decoded = (_pixels(source, index, self.channels) for index in range(len(source)))
        return [pixels for pixels in decoded if pixels is not None]


def find_samples(run: str, model: Model, data: str | None = None) -> Samples:
    if data is not None:
        return _from_data(run, model, open_data(data))
    folder = RunFolder.from_weights(run)
    if folder is not None and (folder.path / CONFIG).is_file():
        config = folder.config()
        try:
            return _from_data(run, model, open_data(config.data, label=config.label, task=config.data_task))
        except (DataError, OSError) as error:
            reason = str(error).splitlines()[0]
            return package_samples(model, f"; the run's own data cannot be used: {reason}")
    return package_samples(model)


def _from_data(run: str, model: Model, data: Data) -> Samples:
    data = data_to_score(run, data, None)
    try:
        data = match_classes(model, data).data
        name = scoring_split(data)
    except VitkitError:  # no labels, or none that the model knows: the images can still be compared on
        name = next((name for name in ("test", "val", "all") if name in data.splits), next(iter(data.splits)))
        data.splits[name] = _unlabelled(data.splits[name])
    training = next((data.splits[name] for name in ("train", "trainval") if name in data.splits), None)
    if len(data.splits[name]) == 0:
        raise DataError(f"{data.name}, {name}, has no images.")
    return Samples(f"{data.name}, {name}", data.splits[name], model.config.channels, training)


def package_samples(model: Model, note: str = "") -> Samples:
    """Return images that the model was hardly trained for: probabilities can be compared on them, but not scored."""
    split = open_fashion().splits["test"]
    return Samples(f"fashion, inside the package{note}", _unlabelled(split), model.config.channels)


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
    """Return grey images as the channels of one, for a model with more channels than the images have."""
    if channels in (1, 3):
        return None
    try:
        bands = [decode(split.read((index + band) % len(split)), channels=1) for band in range(channels)]
        return np.concatenate(bands, axis=2)
    except (DecodeError, DataError, ValueError):
        return None


def other_shapes(pixels: Pixels) -> list[Pixels]:
    """Return crops of an image (wide, high, a line, a point) and an enlargement: sizes that data may lack."""
    height, width = pixels.shape[:2]
    return [
        np.ascontiguousarray(crop)
        for crop in (
            pixels[: max(1, height // 3)],
            pixels[:, : max(1, width // 4)],
            pixels[height // 2 : height // 2 + 1],
            pixels[:, width // 2 : width // 2 + 1],
            pixels[:1, :1],
            pixels.repeat(2, axis=0).repeat(3, axis=1)[:-1],
        )
    ]


def check_not_empty(samples: Samples, compared: int) -> None:
    if compared == 0:
        raise ConfigError(
            f"no image of {samples.description} could be read, so there is nothing to compare on.",
            try_="--data a folder of images",
        )
