"""What a frozen model makes of pictures: the vector before the logits, computed once, then remembered by content.

A picture's vector depends on its bytes, the weights and the preprocessing, not on names, places or labels: those are
the split's as it is now. Data that were moved, renamed or labelled anew cost no second pass.

Shapes: n pictures, D width of the representation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.atomic import replacing
from vitkit.compute.inference import Numbers, ready
from vitkit.data.facts import content_hash, default_place
from vitkit.data.loader import Reader, evaluation_batches
from vitkit.data.sources.base import DataError, Names, Split
from vitkit.data.transforms import Exact
from vitkit.errors import ConfigError, WeightsError
from vitkit.evaluate.memory import recall, remember
from vitkit.model.build import Model
from vitkit.progress import Progress, no_progress
from vitkit.text import few

VERSION = 2  # of decoding, the exact chain and the forward pass: a change there forgets what was remembered


@dataclass(frozen=True, eq=False)
class Features:
    values: NDArray[np.float32]  # (n, D)
    labels: NDArray[np.int64]  # (n,)
    keys: Names  # (n,)
    failures: Mapping[str, str] = field(default_factory=dict)  # key → why it could not be decoded

    def __len__(self) -> int:
        return len(self.values)

    def select(self, rows: NDArray[np.int64]) -> Features:
        return Features(self.values[rows], self.labels[rows], self.keys.select(rows))


@dataclass(frozen=True)
class _Part:
    """What one batch gave."""

    rows: NDArray[np.int64]  # which pictures these are
    values: NDArray[np.float32]  # (n, D)
    failures: Mapping[int, str]  # row → why it could not be decoded


@dataclass(frozen=True, kw_only=True)
class Extractor:
    """A model that is asked for its representation; where, how, and where the answers are kept."""

    model: Model
    device: torch.device | str = "cpu"
    precision: Numbers = "fp32"
    batch: int = 64
    workers: int = 0
    max_failed: float = 0.01
    place: Path | None = None  # of what is remembered; beside the facts of `vitkit check` unless said
    progress: Progress = no_progress

    @property
    def exact(self) -> Exact:
        return Exact(image=self.model.config.image, preprocessing=self.model.metadata.preprocessing)

    def __call__(self, split: Split) -> Features:
        """Of every picture that can be decoded, in the split's order."""
        path = (self.place or default_place().parent / "features") / f"{self._key(split)}.npz"
        values, known = recall(path, len(split))
        lacking = np.flatnonzero(~known)
        failures: dict[str, str] = {}
        if len(lacking):  # failures are tried again each time: a reader that is installed later may mend them
            asked = split.select(lacking)
            try:
                for part in self._compute(asked, self.max_failed * len(split) / len(lacking)):
                    failures |= {asked.keys[row]: reason for row, reason in part.failures.items()}
                    if len(part.rows):
                        values = np.zeros((len(split), part.values.shape[1]), np.float32) if values is None else values
                        values[lacking[part.rows]] = part.values
                        known[lacking[part.rows]] = True
            finally:  # whoever is stopped half-way goes on from there
                if values is not None and known[lacking].any():
                    remember(path, values, known)
        if values is None:
            raise DataError(
                "no picture could be decoded; there is nothing to look at.",
                such_as=[f"{key}: {reason}" for key, reason in [*failures.items()][:5]] or "no pictures",
            )
        chosen = split if known.all() else split.select(known)
        return Features(values[known], chosen.labels, chosen.keys, failures)

    def _compute(self, split: Split, max_failed: float) -> Iterator[_Part]:
        """A batch at a time."""
        model, device = self.model.to(self.device), torch.device(self.device)
        reader = Reader(split=split, transform=self.exact, channels=model.config.channels)
        batches = evaluation_batches(
            reader, self.batch, workers=self.workers, pin=device.type == "cuda", max_failed=max_failed
        )
        training = model.training
        model.eval()
        represent = ready(model, self.precision).represent
        try:
            for loaded in self.progress(batches, -(-len(split) // self.batch), "features"):
                rows = loaded.indices.numpy()
                yield _Part(rows, self._ask(represent, loaded.images, split.select(rows)), dict(loaded.failures))
        finally:
            model.train(training)

    def _ask(self, represent: Callable[[Tensor], Tensor], images: Tensor, split: Split) -> NDArray[np.float32]:
        """(n, C, height, width) → (n, D); `split` has their names."""
        if not len(images):
            return np.empty((0, 0), np.float32)
        device = torch.device(self.device)
        with torch.no_grad():
            found = represent(images.to(device, non_blocking=True)).cpu().numpy()
        wrong = np.flatnonzero(~np.isfinite(found).all(axis=1))
        if len(wrong):
            raise WeightsError(
                f"the model has no finite numbers for {len(wrong):,} of {len(found):,} pictures.",
                such_as=few([split.keys[int(row)] for row in wrong[:3]]),
                try_="--precision fp32" if self.precision != "fp32" else "other weights",
            )
        return found

    def _key(self, split: Split) -> str:
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{VERSION} {self.precision} {weights_hash(self.model)} {self.exact}".encode())
        for index in self.progress(range(len(split)), len(split), "reading"):
            try:
                digest.update(content_hash(split.read(index)).encode())
            except DataError:
                digest.update(b"cannot be read")
        return digest.hexdigest()


def join(one: Features, other: Features) -> Features:
    return Features(
        np.concatenate([one.values, other.values]),
        np.concatenate([one.labels, other.labels]),
        Names([*one.keys, *other.keys]),
    )


def weights_hash(model: Model) -> str:
    """Of everything that the representation depends on: the same for any file format, and for any head on top."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr(replace(model.config, classes=0)).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if not name.startswith("head.logits."):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def write_features(path: Path, parts: Mapping[str, Features], classes: tuple[str, ...]) -> None:
    """One file for other tools: the parts one after another, `split` telling which row belongs to which."""
    with replacing(path, ConfigError) as temporary, temporary.open("wb") as file:
        np.savez(
            file,
            features=np.concatenate([part.values for part in parts.values()]),
            labels=np.concatenate([part.labels for part in parts.values()]),
            keys=np.array([key for part in parts.values() for key in part.keys]),
            split=np.repeat([*parts], [len(part) for part in parts.values()]),
            class_names=np.array(classes),
        )
