"""vitkit's own form: model.safetensors, with model.json beside it for people and programs.

The safetensors header carries the same record, so that a file copied on its own still knows its classes and its
preprocessing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor

import vitkit
from vitkit.data.preprocessing import Preprocessing
from vitkit.errors import VitkitError, WeightsError
from vitkit.model.base import Metadata
from vitkit.model.build import Model
from vitkit.model.config import ModelConfig, from_dict, to_dict
from vitkit.model.variants import name_of
from vitkit.weights.formats import Checkpoint, Content, Losses
from vitkit.weights.mapping import Rule, read, same, skeleton, write

VERSION = 1
HEADER = "vitkit"  # key of the record in a safetensors header


def recognises(names: Collection[str]) -> bool:
    return "patches.project.weight" in names or "body.root.weight" in names


def load(checkpoint: Checkpoint) -> Content:
    record = checkpoint.record
    if record is None:
        raise WeightsError(
            f"{checkpoint.origin} holds vitkit's tensors without their record.",
            looked_for="the record in its header, or model.json beside model.safetensors",
        )
    config, metadata = understand(record, checkpoint.origin)
    state = read(checkpoint.tensors, rules(config), config, checkpoint.origin)
    return Content(config=config, state=state, metadata=metadata)


def understand(record: Mapping[str, Any], origin: str) -> tuple[ModelConfig, Metadata]:
    """The inverse of `record_of`, after a trip through JSON."""
    if record.get("version") != VERSION:
        raise WeightsError(
            f"{origin} was written in version {record.get('version')!r} of the format; "
            f"this vitkit, {vitkit.__version__}, reads version {VERSION}."
        )
    try:
        config = from_dict(record["model"])
        labels = record["labels"]
        metadata = Metadata(
            labels=None if labels is None else tuple(labels),
            provenance=record["provenance"],
            preprocessing=Preprocessing.from_record(record["preprocessing"]),
        )
    except (KeyError, TypeError, AttributeError, VitkitError) as error:
        raise WeightsError(f"the record of {origin} cannot be used: {error}") from error
    if metadata.labels is not None and len(metadata.labels) != config.classes:
        raise WeightsError(
            f"the record of {origin} names {len(metadata.labels)} classes, the model has {config.classes}."
        )
    return config, metadata


def tensors_of(model: Model) -> dict[str, Tensor]:
    return write(model, rules(model.config))


def record_of(model: Model) -> dict[str, Any]:
    metadata = model.metadata
    return {
        "version": VERSION,
        "vitkit": vitkit.__version__,
        "variant": name_of(model.config),
        "model": to_dict(model.config),
        "labels": None if metadata.labels is None else list(metadata.labels),
        "preprocessing": asdict(metadata.preprocessing),
        "provenance": dict(metadata.provenance),
    }


def header_of(model: Model) -> dict[str, str]:
    return {"format": "pt", HEADER: json.dumps(record_of(model))}


def losses(model: Model) -> Losses:
    return Losses()


def rules(config: ModelConfig) -> Iterator[Rule]:
    return (same(name, name) for name in skeleton(config))
