"""vitkit's own format: model.safetensors and model.json in one folder.

The safetensors header holds the same record, so a file copied on its own keeps its classes and its preprocessing.
"""

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
from vitkit.weights.formats import Checkpoint, ConversionLosses, LoadedWeights
from vitkit.weights.mapping import Rule, meta_state_dict, to_foreign_tensors, to_native_state, unchanged

VERSION = 1
HEADER = "vitkit"  # key of the record in a safetensors header


def recognises(names: Collection[str]) -> bool:
    return "patches.project.weight" in names or "body.root.weight" in names


def load(checkpoint: Checkpoint) -> LoadedWeights:
    record = checkpoint.record
    if record is None:
        raise WeightsError(
            f"{checkpoint.origin} holds vitkit's tensors without the record that describes the model.",
            looked_for="the record in its header, or model.json in the same folder",
        )
    config, metadata = parse_record(record, checkpoint.origin)
    state = to_native_state(checkpoint.tensors, rules(config), config, checkpoint.origin)
    return LoadedWeights(config=config, state=state, metadata=metadata)


def parse_record(record: Mapping[str, Any], origin: str) -> tuple[ModelConfig, Metadata]:
    """Return the config and metadata of a JSON record, the inverse of `record_of`."""
    if record.get("version") != VERSION:
        raise WeightsError(
            f"{origin} has version {record.get('version')!r} of vitkit's format; "
            f"vitkit {vitkit.__version__} reads version {VERSION}."
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
            f"the record of {origin} names {len(metadata.labels)} classes, but the model has {config.classes}."
        )
    return config, metadata


def tensors_of(model: Model) -> dict[str, Tensor]:
    return to_foreign_tensors(model, rules(model.config))


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


def conversion_losses(model: Model) -> ConversionLosses:
    return ConversionLosses()


def rules(config: ModelConfig) -> Iterator[Rule]:
    return (unchanged(name, name) for name in meta_state_dict(config))
