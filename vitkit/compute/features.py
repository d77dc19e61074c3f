"""Extract the features of a frozen model, the vectors before the logits, and cache them by content.

An image's features depend on its bytes, the weights and the preprocessing, not on names, folders or labels, which come
from the split. Data that were moved, renamed or relabelled need no second pass.

Shapes: n images, D width of the representation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.atomic import replacing
from vitkit.compute.batch_size import inference_batch
from vitkit.compute.cast import Cast
from vitkit.compute.feature_cache import read_cache, write_cache
from vitkit.compute.inference import Precision, for_inference
from vitkit.compute.pipeline import PART, compute_batches, lent_parts
from vitkit.data.batch import Batch
from vitkit.data.evaluation_batches import evaluation_batches
from vitkit.data.failures import MAX_FAILED
from vitkit.data.image_info import content_hash, default_cache_path
from vitkit.data.sources.dataset import DataError, PackedStrings, Split
from vitkit.data.split_dataset import SplitDataset
from vitkit.data.transforms import EvalTransform
from vitkit.errors import ConfigError, WeightsError
from vitkit.model.build import Model, check_of_images
from vitkit.model.config import ModelConfig, without_head
from vitkit.progress import Progress, no_progress
from vitkit.text import few

VERSION = 2  # of decoding, EvalTransform and the forward pass: a change of one invalidates the cache
# Options that every cache is named by. Later ones name it only where they are not at their default.
FIRST_OPTIONS = frozenset(
    "depth width mlp heads patch stem image channels classes positions inject pool class_token representation norm "
    "axial gelu eps dropout stochastic_depth body".split()
)


@dataclass(frozen=True, eq=False)
class Features:
    values: NDArray[np.float32]  # (n, D)
    labels: Any  # (n,) class indices; SparseLabels of multi-label data
    keys: PackedStrings  # (n,)
    failures: Mapping[str, str] = field(default_factory=dict)  # key → why it could not be decoded
    groups: NDArray[np.int64] | None = None  # (n,) of the split
    leaked: NDArray[np.uint8] | None = None  # (n,) vitkit.data.groups.Leak; None: not compared

    def __len__(self) -> int:
        return len(self.values)

    def select(self, rows: NDArray[np.int64]) -> Features:
        groups = None if self.groups is None else self.groups[rows]
        return Features(self.values[rows], self.labels[rows], self.keys.select(rows), groups=groups)


@dataclass(frozen=True)
class _BatchFeatures:
    rows: NDArray[np.int64]  # of the images in the split
    values: NDArray[np.float32]  # (n, D)
    failures: Mapping[int, str]  # row → why it could not be decoded


@dataclass(frozen=True, kw_only=True)
class FeatureExtractor:
    """A frozen model with its device, precision and batch size, and the folder of the feature cache."""

    model: Model
    device: torch.device | str = "cpu"
    precision: Precision = "fp32"
    layers: tuple[str, ...] = ()  # captures whose features are wanted, side by side; (): the representation
    batch: int | None = None  # default: as many images as suit the device
    workers: int = 0
    max_failed: float = MAX_FAILED
    cache_folder: Path | None = None  # default: features/ in vitkit's cache folder
    progress: Progress = no_progress

    @property
    def transform(self) -> EvalTransform:
        return EvalTransform(image=self.model.config.image, preprocessing=self.model.metadata.preprocessing)

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths of the features of each layer, which stand side by side."""
        if not self.layers:
            return ()
        image = torch.zeros(1, self.model.config.channels, *self.model.config.image)
        reference = next(self.model.parameters())
        with torch.no_grad():
            _, seen = self.model(image.to(reference), self.layers)
            return tuple(self.model.pool_layer(layer, seen[layer]).shape[1] for layer in self.layers)

    def __call__(self, split: Split) -> Features:
        """Return the features of every image that can be decoded, in the split's order."""
        path = (self.cache_folder or default_cache_path().parent / "features") / f"{self._key(split)}.npz"
        values, known = read_cache(path, len(split))
        uncached = np.flatnonzero(~known)
        failures: dict[str, str] = {}
        if len(uncached):  # failures are retried each time: a decoder that is installed later may read them
            remaining = split.select(uncached)
            try:
                for batch in self._compute(remaining, len(split)):
                    failures |= {remaining.keys[row]: reason for row, reason in batch.failures.items()}
                    if len(batch.rows):
                        values = np.zeros((len(split), batch.values.shape[1]), np.float32) if values is None else values
                        values[uncached[batch.rows]] = batch.values
                        known[uncached[batch.rows]] = True
            finally:  # after an interruption, the next call continues from here
                if values is not None and known[uncached].any():
                    write_cache(path, values, known)
        if values is None:
            raise DataError(
                "no image could be decoded; there are no features to extract.",
                such_as=[f"{key}: {reason}" for key, reason in [*failures.items()][:5]] or "no images",
            )
        chosen = split if known.all() else split.select(known)
        return Features(values[known], chosen.labels, chosen.keys, failures, chosen.groups, chosen.leaked)

    def _compute(self, split: Split, images: int) -> Iterator[_BatchFeatures]:
        """Yield the features of one batch after another; `images` counts the cached ones too."""
        model, device = self.model.to(self.device), torch.device(self.device)
        batch = self.batch or inference_batch(model, device)
        dataset = SplitDataset(split=split, transform=self.transform, channels=model.config.channels)
        batches = evaluation_batches(
            dataset,
            batch,
            workers=self.workers,
            pin_memory=device.type == "cuda",
            max_failed=self.max_failed,
            images=images,
            part=PART,
            lend=lent_parts(batch),
        )
        training = model.training
        model.eval()
        represent = self._represent()
        try:
            loaded = self.progress(batches, len(split), "features", Batch.images_read)
            for computed in compute_batches(loaded, batch, lambda images: (represent(images),), device):
                values = np.empty((0, 0), np.float32)
                if computed.outputs is not None:
                    values = self._finite(computed.outputs[0].numpy(), split.select(computed.indices))
                yield _BatchFeatures(computed.indices, values, dict(computed.failures))
        finally:
            model.train(training)

    def _represent(self) -> Callable[[Tensor], Tensor]:
        """Return images → features (B, D); those of layers stand side by side, (B, layers · D)."""
        check_of_images(self.model, "a vector of an image")
        if not self.layers:
            return for_inference(self.model, self.precision).represent
        model = Cast(self.model, torch.float32 if self.precision == "fp32" else torch.bfloat16, fused=False).eval()
        return partial(model.represent_layers, self.layers)

    def _finite(self, values: NDArray[np.float32], split: Split) -> NDArray[np.float32]:
        """Return features (n, D) that are finite numbers, or raise an error; `split` has the names of their images."""
        wrong = np.flatnonzero(~np.isfinite(values).all(axis=1))
        if len(wrong):
            raise WeightsError(
                f"the model's features are not finite for {len(wrong):,} of {len(values):,} images.",
                such_as=few([split.keys[int(row)] for row in wrong[:3]]),
                try_="--precision fp32" if self.precision != "fp32" else "other weights",
            )
        return values

    def _key(self, split: Split) -> str:
        digest = hashlib.blake2b(digest_size=16)
        # EvalTransform under its first name: caches that were written before its renaming stay valid
        preprocessing = f"Exact(image={self.transform.image}, preprocessing={self.transform.preprocessing})"
        layers = f" {self.layers}" if self.layers else ""  # caches of earlier versions are of the representation
        digest.update(f"{VERSION} {self.precision} {weights_hash(self.model)} {preprocessing}{layers}".encode())
        ahead = split.read_ahead(range(len(split)))
        for index in self.progress(range(len(split)), len(split), "reading"):
            try:
                digest.update(content_hash(ahead.read(index)).encode())
            except DataError:
                digest.update(b"cannot be read")
        return digest.hexdigest()


def concatenate(one: Features, other: Features) -> Features:
    return Features(
        np.concatenate([one.values, other.values]),
        np.concatenate([one.labels, other.labels]),
        PackedStrings([*one.keys, *other.keys]),
    )


def weights_hash(model: Model) -> str:
    """Return a hash of everything that the features depend on, the same for any file format and any head."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(_describe_options(without_head(model.config)).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if not name.startswith("head.logits."):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _describe_options(config: ModelConfig) -> str:
    """Return the options of a model as text; later ones only where they are used, so that older caches are found."""
    shown = [
        f"{one.name}={getattr(config, one.name)!r}"
        for one in fields(config)
        if one.name in FIRST_OPTIONS or getattr(config, one.name) != one.default
    ]
    return f"{type(config).__name__}({', '.join(shown)})"


def write_features(path: Path, splits: Mapping[str, Features], classes: tuple[str, ...]) -> None:
    """Write the features of all splits to one npz file for other tools; its array `split` names each row's split."""
    with replacing(path, ConfigError) as temporary, temporary.open("wb") as file:
        np.savez(
            file,
            features=np.concatenate([features.values for features in splits.values()]),
            labels=np.concatenate([features.labels for features in splits.values()]),
            keys=np.array([key for features in splits.values() for key in features.keys]),
            split=np.repeat([*splits], [len(features) for features in splits.values()]),
            class_names=np.array(classes),
        )
