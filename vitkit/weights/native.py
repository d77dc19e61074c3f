"""vitkit's own format: model.safetensors and model.json in one folder.

The safetensors header holds the same record, so a file copied on its own keeps its classes and its preprocessing.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from typing import Any, NotRequired, TypedDict

from torch import Tensor

import vitkit
from vitkit.data.preprocessing import Preprocessing
from vitkit.errors import ConfigError, SizeError, WeightsError
from vitkit.model.base import Metadata, Provenance
from vitkit.model.build import Model
from vitkit.model.config import ModelConfig, ViTConfig, from_dict, to_dict
from vitkit.model.resize_positions import Interpolation
from vitkit.model.segmenter_config import SegmenterConfig
from vitkit.model.variants import name_of
from vitkit.stored_json import conform
from vitkit.text import counted, few
from vitkit.weights.formats import Checkpoint, ConversionLosses, LoadedWeights
from vitkit.weights.mapping import Rule, meta_state_dict, to_foreign_tensors, to_native_state, unchanged

VERSION = 1
# of a ViT, a ResNet, an iGPT and a segmenter
FIRST_LAYERS = ("patches.project.weight", "body.root.weight", "embedding.palette", "backbone.patches.project.weight")
HEADER = "vitkit"  # key of the record in a safetensors header


class ModelRecord(TypedDict):
    """The content of model.json, as far as it is read back; `from_dict` and `Preprocessing` check the rest."""

    version: int
    model: dict[str, Any]
    labels: tuple[str, ...] | None
    preprocessing: dict[str, Any]
    provenance: Provenance
    interpolation: NotRequired[Interpolation]  # left out for Google's, as in records of earlier versions


def recognises(names: Collection[str]) -> bool:
    return any(name in names for name in FIRST_LAYERS)


def load(checkpoint: Checkpoint) -> LoadedWeights:
    record = checkpoint.record
    if record is None:
        raise WeightsError(
            f"{checkpoint.origin} holds vitkit's tensors without the record that describes the model.",
            looked_for="the record in its header, or model.json in the same folder",
        )
    config, metadata = parse_record(record, checkpoint.origin)
    check_layers(config, len(checkpoint.tensors), checkpoint.origin)
    state = to_native_state(checkpoint.tensors, rules(config), config, checkpoint.origin)
    return LoadedWeights(config=config, state=state, metadata=metadata)


def parse_record(record: Mapping[str, Any], origin: str) -> tuple[ModelConfig, Metadata]:
    """Return the config and metadata of a JSON record, the inverse of `record_of`."""
    if isinstance(record, Mapping) and record.get("version") != VERSION:
        raise WeightsError(
            f"{origin} has version {record.get('version')!r} of vitkit's format; "
            f"vitkit {vitkit.__version__} reads version {VERSION}."
        )
    checked: ModelRecord = conform(record, ModelRecord, f"the record of {origin}", error=WeightsError)
    try:
        config = from_dict(checked["model"])
        preprocessing = Preprocessing.from_record(checked["preprocessing"])
    except (ConfigError, SizeError) as error:
        raise WeightsError.around(f"the record of {origin} cannot be used", error) from error
    labels, provenance = checked["labels"], checked["provenance"]
    _check_labels(labels, provenance, origin)
    metadata = Metadata(
        labels=labels,
        provenance=provenance,
        preprocessing=preprocessing,
        interpolation=checked.get("interpolation", "paper"),
    )
    if metadata.labels is not None and len(metadata.labels) != config.classes:
        raise WeightsError(
            f"the record of {origin} names {len(metadata.labels)} classes, but the model has {config.classes}."
        )
    return config, metadata


def _check_labels(labels: tuple[str, ...] | None, provenance: Mapping[str, Any], origin: str) -> None:
    """Raise for class names that occur twice, where vitkit trained the model; ImageNet's, of others, do ("crane")."""
    twice = [name for name, number in Counter(labels or ()).items() if number > 1]
    if twice and "data" in provenance:
        raise WeightsError(
            f"the record of {origin} names {counted(len(twice), 'class', 'classes')} twice.",
            found=few(list(map(repr, twice))),
            try_="the record that the run wrote; the header of model.safetensors has a copy",
        )


def check_layers(config: ModelConfig, tensors: int, origin: str) -> None:
    """Raise if a record claims more layers than there are tensors; building them would take memory without bound."""
    vit = config.backbone if isinstance(config, SegmenterConfig) else config
    stem = vit.stem if isinstance(vit, ViTConfig) else None
    layers = config.layers + sum(stem.layers if stem else ())
    if layers > tensors:
        raise WeightsError(
            f"the record of {origin} describes a model of {layers:,} layers, but there are {tensors:,} tensors."
        )


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
        **({} if metadata.interpolation == "paper" else {"interpolation": metadata.interpolation}),
    }


def header_of(model: Model) -> dict[str, str]:
    return {"format": "pt", HEADER: json.dumps(record_of(model))}


def conversion_losses(model: Model) -> ConversionLosses:
    return ConversionLosses()


def rules(config: ModelConfig) -> Iterator[Rule]:
    return (unchanged(name, name) for name in meta_state_dict(config))
