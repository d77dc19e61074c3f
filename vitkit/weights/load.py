"""Any weights → a model: the format by content, the sizes from the tensors, then the image and classes asked for."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import get_args

import torch

from vitkit.errors import ConfigError, WeightsError, did_you_mean
from vitkit.model.build import Model, build
from vitkit.model.config import ViTConfig, check_count, parse_size
from vitkit.model.positions import Interpolation
from vitkit.model.variants import configure
from vitkit.text import few
from vitkit.weights.files import open_checkpoint
from vitkit.weights.formats import Checkpoint, Content
from vitkit.weights.hub import PREFIX, download
from vitkit.weights.public import DEFAULTS
from vitkit.weights.registry import FORMATS, Format

log = logging.getLogger("vitkit")


def load(
    source: str | os.PathLike[str],
    *,
    image: int | tuple[int, int] | None = None,
    classes: int | None = None,
    grid: tuple[int, int] | None = None,
    heads: int | None = None,
    interpolation: Interpolation = "paper",
) -> Model:
    """A model with its weights, in evaluation mode, from a file, a folder or hf:OWNER/NAME.

    image           resize learned positions to this image size (section 3.2)
    interpolation   how: "paper" (Google's) or "bicubic" (timm's)
    classes         replace the head by a zero-initialised linear one when its number of classes is another
    grid            (rows, columns) of a checkpoint whose position table is not square
    heads           attention heads, where neither tensors nor configuration tell
    """
    if interpolation not in get_args(Interpolation):
        raise ConfigError(
            f"interpolation={interpolation!r} is not known", choose_from=", ".join(get_args(Interpolation))
        )
    if classes is not None:
        check_count("classes", classes, least=0)
    content = read(source, grid=grid, heads=heads)
    with torch.device("meta"):
        model = build(content.config)
    model.load_state_dict(content.state, assign=True)
    model.metadata = content.metadata
    if image is not None:
        before = content.config.image
        model.resize(image, interpolation)
        if isinstance(model.config, ViTConfig) and model.config.image != before:
            _say(source, f"{_size(before)} → {_size(model.config.image)} px, positions resized ({interpolation})")
    if classes is not None and classes != model.config.classes:
        _say(
            source,
            f"head replaced: {model.config.classes} → {classes} classes, zero-initialised"
            if classes
            else f"head removed, {model.config.classes} classes",
        )
        model.replace_head(classes)
    return model.eval()


def read(source: str | os.PathLike[str], *, grid: tuple[int, int] | None = None, heads: int | None = None) -> Content:
    """The checkpoint, understood but not yet built."""
    if heads is not None:
        check_count("heads", heads, least=1)
    if grid is not None:
        grid = parse_size(grid)
    path = _locate(os.fspath(source))
    checkpoint = replace(open_checkpoint(path), origin=os.fspath(source), grid=grid, heads=heads)
    try:
        content = recognise(checkpoint).load(checkpoint)
    except ConfigError as error:
        raise WeightsError(f"{checkpoint.origin} describes a model that cannot be built: {error}") from error
    for name, given in (("heads", heads), ("grid", grid)):
        known = getattr(content.config, name, None)
        if given not in (None, known):
            raise WeightsError(
                f"{checkpoint.origin} has {name} {known}, not {given}."
                if known
                else f"{checkpoint.origin} is a ResNet, which has no {name}."
            )
    return content


def recognise(checkpoint: Checkpoint) -> Format:
    names = checkpoint.tensors.keys()
    for known in FORMATS.values():
        if known.recognises(names):
            return known
    shown = sorted(names)[:6]
    raise WeightsError(
        f"{checkpoint.origin} holds {len(names)} tensors of a model that vitkit does not know.",
        known="vitkit's own, Google's vision_transformer and big_transfer, timm's and transformers' ViT",
        found=", ".join(shown) + (" …" if len(names) > len(shown) else "") or "no tensors",
    )


def _locate(source: str) -> Path:
    if source.startswith(PREFIX):
        return download(source)
    path = Path(source).expanduser()
    if path.exists():
        return path
    try:
        configure(source)
    except ConfigError:
        beside = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []
        raise WeightsError(
            f"{source} does not exist{did_you_mean(path.name, beside) or '.'}",
            **({"beside_it": few(beside, 8)} if beside else {}),
            try_="a weights file, a run folder, or hf:OWNER/NAME",
        ) from None
    public = DEFAULTS.get(source)
    raise WeightsError(
        f"{source} is a model's name, not a file.",
        untrained=f"vitkit.create({source!r})",
        trained=f"vitkit.load({public.source!r})" if public else "no public weights are known",
    )


def _say(source: str | os.PathLike[str], what: str) -> None:
    log.warning("%s: %s", os.fspath(source), what)


def _size(image: tuple[int, int]) -> str:
    return str(image[0]) if image[0] == image[1] else f"{image[0]} x {image[1]}"
