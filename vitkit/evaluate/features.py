"""What a frozen model makes of pictures: the vector before the logits, computed once, then remembered by content.

A picture's vector depends on its bytes, the weights and the preprocessing, not on names, places or labels: those are
the split's as it is now. Data that were moved, renamed or labelled anew cost no second pass.

Shapes: n pictures, D width of the representation.
"""

from __future__ import annotations

import contextlib
import hashlib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.atomic import replacing
from vitkit.data.facts import content_hash, default_place
from vitkit.data.loader import Reader, evaluation_batches
from vitkit.data.sources.base import DataError, Names, Split
from vitkit.data.sources.files import few
from vitkit.data.transforms import Exact
from vitkit.errors import ConfigError, VitkitError, WeightsError
from vitkit.model.build import Model
from vitkit.train.score import Watch

VERSION = 1  # of decoding and the exact chain: a change there forgets what was remembered


@dataclass(frozen=True, eq=False)
class Features:
    values: NDArray[np.float32]  # (n, D)
    labels: NDArray[np.int64]    # (n,)
    keys: Names                  # (n,)
    failures: Mapping[str, str] = field(default_factory=dict)  # key → why it could not be decoded

    def __len__(self) -> int:
        return len(self.values)

    def select(self, rows: NDArray[np.int64]) -> Features:
        return Features(self.values[rows], self.labels[rows], self.keys.select(rows))


@dataclass(frozen=True, kw_only=True)
class Extractor:
    """A model that is asked for its representation; where, how, and where the answers are kept."""

    model: Model
    device: torch.device | str = "cpu"
    precision: str = "fp32"
    batch: int = 64
    workers: int = 0
    max_failed: float = 0.01
    place: Path | None = None  # of what is remembered; beside the facts of `vitkit check` unless said
    watch: Watch = lambda items, total, what: iter(items)

    @property
    def exact(self) -> Exact:
        return Exact(image=self.model.config.image, preprocessing=self.model.metadata.preprocessing)

    def __call__(self, split: Split) -> Features:
        """Of every picture that can be decoded, in the split's order."""
        path = (self.place or default_place().parent / "features") / f"{self._key(split)}.npz"
        values, known = _recall(path, len(split))
        lacking = np.flatnonzero(~known)
        failures: dict[str, str] = {}
        if len(lacking):  # failures are tried again each time: a reader that is installed later may mend them
            asked = split.select(lacking)
            found, rows, reasons = self._compute(asked, self.max_failed * len(split) / len(lacking))
            if len(rows):
                values = np.zeros((len(split), found.shape[1]), np.float32) if values is None else values
                values[lacking[rows]], known[lacking[rows]] = found, True
                _remember(path, values, known)
            failures = {asked.keys[row]: reason for row, reason in reasons.items()}
        if values is None:
            raise DataError("no picture could be decoded; there is nothing to look at.",
                            such_as=[f"{key}: {reason}" for key, reason in [*failures.items()][:5]] or "no pictures")
        chosen = split if known.all() else split.select(known)
        return Features(values[known], chosen.labels, chosen.keys, failures)

    def _compute(self, split: Split, max_failed: float) -> tuple[NDArray[np.float32], NDArray[Any], dict[int, str]]:
        """The vectors (n, D), which pictures they are of, and why others have none."""
        model, device = self.model.to(self.device), torch.device(self.device)
        reader = Reader(split=split, transform=self.exact, channels=model.config.channels)
        batches = evaluation_batches(reader, self.batch, workers=self.workers, pin=device.type == "cuda",
                                     max_failed=max_failed)
        values, indices, failures = [], [], {}
        training = model.training
        model.eval()
        try:
            with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16"):
                for loaded in self.watch(batches, -(-len(split) // self.batch), "features"):
                    failures.update(loaded.failures)
                    if len(loaded.images):
                        _, seen = model(loaded.images.to(device, non_blocking=True), capture=("representation",))
                        values.append(seen["representation"].float().cpu())
                        indices.append(loaded.indices)
        finally:
            model.train(training)
        if not values:
            return np.empty((0, 0), np.float32), np.empty(0, np.int64), failures
        found, rows = torch.cat(values).numpy(), torch.cat(indices).numpy()
        self._refuse_nonsense(found, split.select(rows))
        return found, rows, failures

    def _refuse_nonsense(self, found: NDArray[np.float32], split: Split) -> None:
        wrong = np.flatnonzero(~np.isfinite(found).all(axis=1))
        if len(wrong):
            raise WeightsError(f"the model has no finite numbers for {len(wrong):,} of {len(found):,} pictures.",
                               such_as=few([split.keys[int(row)] for row in wrong[:3]]),
                               try_="--precision fp32" if self.precision != "fp32" else "other weights")

    def _key(self, split: Split) -> str:
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{VERSION} {self.precision} {weights_hash(self.model)} {self.exact}".encode())
        for index in self.watch(range(len(split)), len(split), "reading"):
            try:
                digest.update(content_hash(split.read(index)).encode())
            except DataError:
                digest.update(b"cannot be read")
        return digest.hexdigest()


def join(one: Features, other: Features) -> Features:
    return Features(np.concatenate([one.values, other.values]), np.concatenate([one.labels, other.labels]),
                    Names([*one.keys, *other.keys]))


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
        np.savez(file, features=np.concatenate([part.values for part in parts.values()]),
                 labels=np.concatenate([part.labels for part in parts.values()]),
                 keys=np.array([key for part in parts.values() for key in part.keys]),
                 split=np.repeat([*parts], [len(part) for part in parts.values()]), class_names=np.array(classes))


def _recall(path: Path, pictures: int) -> tuple[NDArray[np.float32] | None, NDArray[np.bool_]]:
    """What was remembered (n, D) and of which pictures (n,); None and no picture where that is damaged or missing."""
    with contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), \
            np.load(path, allow_pickle=False) as stored:
        values, known = stored["values"], stored["known"]
        if values.ndim == 2 and values.dtype == np.float32 and known.dtype == bool and (
                values.shape[:1] == known.shape == (pictures,)):
            return values, known
    return None, np.zeros(pictures, bool)


def _remember(path: Path, values: NDArray[np.float32], known: NDArray[np.bool_]) -> None:
    with contextlib.suppress(VitkitError, OSError):  # a memory that cannot be kept costs time, not answers
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, values=values, known=known)
