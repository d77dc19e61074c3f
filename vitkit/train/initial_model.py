"""The model that a run starts from: fresh, with public weights or anyone's, made ready for the new classes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import vitkit
from vitkit.atomic import write_text
from vitkit.config.schema import Fit
from vitkit.data.preprocessing import Preprocessing
from vitkit.errors import ConfigError, WeightsError
from vitkit.model.build import Model, build
from vitkit.model.config import ModelConfig, ViTConfig
from vitkit.model.variants import configure, name_of
from vitkit.weights import native
from vitkit.weights.load import load
from vitkit.weights.public import DEFAULTS
from vitkit.weights.run_checkpoints import DESCRIPTION

SMALLEST = "Ti/16"  # what `fit` takes when no model is named


def start_model(config: Fit, classes: Sequence[str], *, multilabel: bool) -> tuple[Model, str]:
    """The model in training mode, labelled, and what was done to it in words; no classes for pre-training."""
    model, words = _fresh(config, len(classes)) if config.weights == "none" else _loaded(config, classes)
    how = model.metadata.preprocessing
    if config.resize is not None and config.resize != how.resize:
        how = replace(how, resize=config.resize, crop=1.0)
    model.metadata = replace(
        model.metadata,
        labels=tuple(classes) or None,
        preprocessing=how,
        # names, not paths: this travels with the weights, to people whom nobody's disk concerns
        provenance={
            "vitkit": vitkit.__version__,
            "data": Path(config.data).name,
            "objective": config.objective,
            "recipe": config.recipe,
            "multilabel": multilabel,
            "weights": config.weights if config.weights.startswith("hf:") else Path(config.weights).name,
            "before": dict(model.metadata.provenance),
        },
    )
    return model.train(), f"{_describe(model)}; {words}"


def remember_model(model: Model, folder: Path) -> None:
    """What the model is, beside its checkpoints: resuming needs the weights that it started from no more."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / DESCRIPTION, json.dumps(native.record_of(model), indent=2) + "\n")


def restart_model(folder: Path) -> tuple[Model, str]:
    """The model of a run that goes on; a checkpoint brings the weights."""
    record = folder / DESCRIPTION
    try:
        config, metadata = native.understand(json.loads(record.read_text(encoding="utf-8")), str(record))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{record} cannot be read: {error}", try_="a new run") from error
    model = build(config)
    model.metadata = metadata
    return model.train(), f"{_describe(model)}; as it began"


def resolve_weights(config: Fit) -> Fit:
    """ "default" → the variant's public weights by name; a model that has none says so."""
    if config.weights == "none":
        return replace(config, model=config.model or SMALLEST)
    if config.weights != "default":
        here = Path(config.weights)  # a run is resumed from anywhere
        return replace(config, weights=str(here.absolute())) if here.exists() else config
    model = config.model or SMALLEST
    public = DEFAULTS.get(model)
    if public is None:
        configure(model)  # an unknown name is told as that
        raise ConfigError(
            f"no public weights are known for {model}.",
            try_="--weights none to train from nothing, --weights PATH for your own",
            known_for=", ".join(DEFAULTS),
        )
    return replace(config, model=model, weights=public.source)


def _fresh(config: Fit, classes: int) -> tuple[Model, str]:
    settled = ("image", "channels", "dropout", "stochastic_depth")
    for name in config.options:
        if name == "classes":
            raise ConfigError("options.classes: the data say how many classes there are")
        if name in settled:
            raise ConfigError(f"options.{name} is a setting of its own", try_=f"--set {name}={config.options[name]}")
    said: dict[str, Any] = {name: value for name in settled if (value := getattr(config, name))}
    torch.manual_seed(config.seed)
    model = build(configure(config.model or SMALLEST, classes=classes, **said, **config.options))
    middle = (0.5,) * model.config.channels
    model.metadata = replace(model.metadata, preprocessing=Preprocessing(mean=middle, std=middle))
    return model, "fresh weights"


def _loaded(config: Fit, classes: Sequence[str]) -> tuple[Model, str]:
    model = _read(config)
    found = name_of(model.config)
    if config.model and config.model != found:
        raise ConfigError(
            f"{config.weights} is {found or f'no named model ({_sizes(model.config)})'}, not {config.model}.",
            try_="leave --model out" + (f", or --model {found}" if found else ""),
        )
    if config.channels not in (None, model.config.channels):
        raise ConfigError(
            f"{config.weights} takes pictures of {_channels(model.config.channels)}, not {config.channels}",
            try_="leave channels out, or --weights none",
        )
    if config.options:
        raise ConfigError(
            f"options {dict(config.options)} describe a fresh model, and {config.weights} is not one.",
            try_="--weights none, or no options",
        )
    done = []
    before = _grid(model.config)
    model.resize(config.image or model.config.image)
    after = _grid(model.config)
    if after:
        done.append(f"positions kept ({after})" if before == after else f"positions {before} → {after}")
    hidden = getattr(model.config, "representation", None)  # in the head of pre-training, which goes as a whole (3.2)
    if model.metadata.labels == tuple(classes) and classes and not hidden:
        done.append("head kept: the same classes")
    else:
        done.append(f"head {model.config.classes} → {len(classes)} classes, zero-initialised" if classes else "no head")
        model.replace_head(len(classes))
    return _regularised(model, config), f"weights {config.weights}; " + ", ".join(done)


def _read(config: Fit) -> Model:
    try:
        return load(config.weights)
    except WeightsError as error:
        ways = []
        if "--heads" in str(error) or "--grid" in str(error):  # options of converting
            ways = [f"vitkit convert {config.weights} OUT --to vitkit, with it; then --weights OUT"]
        elif config.weights.startswith("hf:"):
            ways = ["--weights none  train from nothing, which needs many pictures"]
            if "--weights PATH" not in str(error):
                ways.insert(0, "--weights PATH  a weights file or run folder that is here")
        if not ways:
            raise
        raise WeightsError(str(error), or_=ways) from error


def _regularised(model: Model, config: Fit) -> Model:
    """The same weights under another dropout or stochastic depth, which are part of how a model is built."""
    wanted = {
        name: getattr(config, name)
        for name in ("dropout", "stochastic_depth")
        if getattr(config, name) is not None and getattr(config, name) != getattr(model.config, name, 0.0)
    }
    if not wanted:
        return model
    if not isinstance(model.config, ViTConfig):
        raise ConfigError(f"a ResNet has no {' or '.join(wanted)}.")
    built = build(replace(model.config, **wanted))
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
    record = asdict(config)
    return ", ".join(f"{name} {record[name]}" for name in ("depth", "width", "heads", "patch") if name in record)


def _channels(count: int) -> str:
    return "1 channel" if count == 1 else f"{count} channels"


def _grid(config: ModelConfig) -> str:
    return " x ".join(map(str, config.grid)) if isinstance(config, ViTConfig) else ""
