"""The model that a run starts from: randomly initialised or with pre-trained weights, and a head for its classes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import vitkit
from vitkit.atomic import write_text
from vitkit.compute.segment import trained_size
from vitkit.config.image_size import mask_input
from vitkit.config.model_options import OWN_SETTINGS, configure_model
from vitkit.config.resolve import DEFAULT_MODEL
from vitkit.config.schema import Fit
from vitkit.data.preprocessing import Preprocessing
from vitkit.errors import ConfigError, WeightsError
from vitkit.model.build import Model, build
from vitkit.model.config import ModelConfig, TokenConfig
from vitkit.model.resize_positions import describe_transfer
from vitkit.model.segmenter import Segmenter
from vitkit.model.segmenter_config import SegmenterConfig, with_backbone_options
from vitkit.model.variants import name_of
from vitkit.model.vit import VisionTransformer
from vitkit.stored_json import read_json
from vitkit.text import counted
from vitkit.train.initial_segmenter import describe_segmentation_head, initial_segmenter
from vitkit.weights import native
from vitkit.weights.bundled import local_path
from vitkit.weights.input_channels import adapt_channels
from vitkit.weights.load import load
from vitkit.weights.mapping import meta_state_dict
from vitkit.weights.run_checkpoints import DESCRIPTION, WEIGHTS, stored_shapes


def initial_model(
    config: Fit, classes: Sequence[str], *, multilabel: bool, record: Mapping[str, Any] | None = None
) -> tuple[Model, str]:
    """Return the model in training mode and a description; `classes` is empty for pre-training without labels.

    record   what the provenance of the weights says about the data beside their name
    """
    segments = config.segments
    of_images = () if segments else classes  # a segmenter has no head for whole images
    model, origin = (
        _random_model(config, len(of_images))
        if config.weights == "none"
        else _pretrained_model(config, of_images, trained_size(record or {}))
    )
    if segments:
        model, head = initial_segmenter(model, config, classes)
        origin = f"{origin}; {head}"
    preprocessing = replace(model.metadata.preprocessing, origin="")  # from here on, the run's own record says so
    if config.resize is not None and config.resize != preprocessing.resize:
        preprocessing = replace(preprocessing, resize=config.resize, crop=1.0)
    model.metadata = replace(
        model.metadata,
        labels=tuple(classes) or None,
        preprocessing=preprocessing,
        # names, not paths: this is published with the weights
        provenance={
            "vitkit": vitkit.__version__,
            "data": Path(config.data).name,
            "objective": config.objective,
            "recipe": config.recipe,
            "trained": "head"
            if config.start == "head" or config.freeze == -1
            else "upper layers"
            if config.freeze
            else "all",
            "multilabel": multilabel,
            **({"balance": config.balance, "priors": config.priors} if config.balance else {}),
            "weights": config.weights if (path := local_path(config.weights)) is None else path.name,
            **(record or {}),
            "before": dict(model.metadata.provenance),
        },
    )
    return model.train(), f"{_describe(model)}; {origin}"


def write_description(model: Model, folder: Path) -> None:
    """Write the model's description next to its checkpoints, so that resuming does not need the initial weights."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / DESCRIPTION, json.dumps(native.record_of(model), indent=2) + "\n")


def restored_model(checkpoint: Path, weights: str) -> tuple[Model, str]:
    """Return the model of a run to resume, its weights still to be loaded from the checkpoint, and a description.

    `weights` are those that the run began with. They are named only, and need not exist any more.
    """
    record = checkpoint.parent / DESCRIPTION
    try:
        config, metadata = native.parse_record(read_json(record, dict[str, Any], error=WeightsError), str(record))
        _check_against_checkpoint(config, checkpoint, str(record))
    except FileNotFoundError as error:
        raise WeightsError(f"{record} does not exist.", try_="a new run") from error
    except WeightsError as error:
        error.add(try_="a new run")
        raise
    model = build(config)
    model.metadata = metadata
    origin = "randomly initialised" if weights == "none" else f"with weights {weights}"
    return model.train(), f"{_describe(model)}; resumed, began {origin}"


def _check_against_checkpoint(config: ModelConfig, checkpoint: Path, record: str) -> None:
    """Raise unless the checkpoint has a model of these sizes: its files bound the memory that building one takes."""
    stored = stored_shapes(checkpoint)
    native.check_layers(config, len(stored), record)
    for name, tensor in meta_state_dict(config).items():
        found = stored.get(f"{WEIGHTS}{name}")
        if found != tuple(tensor.shape):
            raise WeightsError(
                f"{record} describes another model than {checkpoint} holds.",
                tensor=f"{name}, expected {tuple(tensor.shape)}, found {found or 'none'}",
            )


def _random_model(config: Fit, classes: int) -> tuple[Model, str]:
    settings = {name: getattr(config, name) or None for name in OWN_SETTINGS}
    torch.manual_seed(config.seed)
    name = config.model or DEFAULT_MODEL
    model = build(configure_model(name, {**settings, "options": config.options}, classes=classes))
    half = (0.5,) * model.config.channels
    model.metadata = replace(model.metadata, preprocessing=Preprocessing(mean=half, std=half))
    head = "" if config.segments else f", {_describe_head(model.config)}"
    return model, f"randomly initialised{head}"


def _pretrained_model(config: Fit, classes: Sequence[str], median: tuple[int, int] | None) -> tuple[Model, str]:
    """Return the model of the weights and what was changed; `median` is the size of images with masks."""
    model = _load(config)
    name = name_of(model.config)
    if config.model and config.model != name:
        raise ConfigError(
            f"{config.weights} is {name or f'no named model ({_sizes(model.config)})'}, not {config.model}.",
            try_="leave --model out" + (f", or --model {name}" if name else ""),
        )
    if config.options:
        raise ConfigError(
            f"options {dict(config.options)} are for a randomly initialised model, but weights = {config.weights}.",
            try_="--weights none, or no options",
        )
    changes = []
    if config.channels not in (None, model.config.channels):
        model, adapted = adapt_channels(model, config.channels)
        changes.append(adapted)
    before = model.config
    if config.load_positions == "fresh":
        torch.manual_seed(config.seed)
    image = config.image or before.image
    if config.image is None and median and isinstance(model, VisionTransformer) and config.load_positions != "keep":
        # a model that segments already keeps its own
        image = mask_input(model.config.stride, median)
    model.resize(image, positions=config.load_positions)
    if isinstance(before, TokenConfig) and isinstance(model.config, TokenConfig):
        changes.append(describe_transfer(model.config, before.grid, config.load_positions))
    if isinstance(model, Segmenter):  # whose head `initial_segmenter` decides on
        return _with_regularisation(model, config), f"weights {config.weights}; " + ", ".join(changes)
    # part of the pre-training head, which is replaced completely (paper, 3.2)
    hidden = getattr(model.config, "representation", None)
    if model.metadata.labels == tuple(classes) and classes and not hidden:
        changes.append("head kept: the same classes")
    else:
        dropped = f"tanh layer of {hidden} dropped, " if hidden else ""
        new = f"linear head {model.config.classes} → {len(classes)} classes, zero-initialised"
        if classes or not config.segments:
            changes.append(dropped + new if classes else "no head")
        model.replace_head(len(classes))
    return _with_regularisation(model, config), f"weights {config.weights}; " + ", ".join(changes)


def _load(config: Fit) -> Model:
    try:
        return load(config.weights)
    except WeightsError as error:
        alternatives = []
        if "--heads" in str(error) or "--grid" in str(error):  # options of `vitkit convert`
            alternatives = [f"vitkit convert {config.weights} OUT --to vitkit with that option, then --weights OUT"]
        elif config.weights.startswith("hf:"):
            alternatives = ["--weights none  trains from scratch, which needs many images"]
            if "--weights PATH" not in str(error):
                alternatives.insert(0, "--weights PATH  uses a local weights file or run folder")
        if alternatives:
            error.add(or_=alternatives)
        raise


def _with_regularisation(model: Model, config: Fit) -> Model:
    """Rebuild the model with the requested dropout and stochastic depth, keeping its weights."""
    requested = {
        name: getattr(config, name)
        for name in ("dropout", "stochastic_depth")
        if getattr(config, name) is not None and getattr(config, name) != getattr(model.config, name, 0.0)
    }
    if not requested:
        return model
    if missing := [name for name in requested if not hasattr(model.config, name)]:
        raise ConfigError(f"{model.kind} has no {' or '.join(missing)}.")
    current = model.config
    if isinstance(current, SegmenterConfig):
        built = build(with_backbone_options(current, requested))
    else:
        built = build(replace(current, **requested))
    built.load_state_dict(model.state_dict())
    built.metadata = model.metadata
    return built


def _describe(model: Model) -> str:
    height, width = model.config.image
    size = f"{height}" if height == width else f"{height} x {width}"
    count = sum(parameter.numel() for parameter in model.parameters())
    amount = f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.0f}k"
    channels = "" if model.config.channels == 3 else f", {_channels(model.config.channels)}"
    return f"{name_of(model.config) or _sizes(model.config)} at {size} px{channels}, {amount} parameters"


def _sizes(config: ModelConfig) -> str:
    record = asdict(config.backbone if isinstance(config, SegmenterConfig) else config)
    return ", ".join(f"{name} {record[name]}" for name in ("depth", "width", "heads", "patch") if name in record)


def _describe_head(config: ModelConfig) -> str:
    if not config.classes:
        return "no head"
    if isinstance(config, SegmenterConfig):
        return f"{describe_segmentation_head(config)}, {counted(config.classes, 'class')}"
    hidden = getattr(config, "representation", None)
    if not hidden:
        return f"linear head, {counted(config.classes, 'class')}"
    return f"head of pre-training (3.1): tanh layer of {hidden}, then {counted(config.classes, 'class')}"


def _channels(count: int) -> str:
    return "1 channel" if count == 1 else f"{count} channels"
