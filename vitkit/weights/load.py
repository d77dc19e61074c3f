"""Load a model from weights of any format: detect the format, infer the sizes, adapt the image size and the classes."""

import logging
import os
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import get_args

from vitkit.errors import ConfigError, WeightsError, did_you_mean
from vitkit.model.build import Model, build_on_meta
from vitkit.model.config import TokenConfig, parse_size
from vitkit.model.options import Gelu, PositionTransfer, check_count
from vitkit.model.resize_positions import LEARNED, Interpolation, describe_transfer
from vitkit.model.variants import configure
from vitkit.storage.urls import is_url, redacted
from vitkit.text import few
from vitkit.weights import clip, facebook, google, huggingface, imagegpt, native, openclip, siglip, timm
from vitkit.weights.bundled import BUNDLED, bundled_folder
from vitkit.weights.files import open_checkpoint
from vitkit.weights.formats import Checkpoint, LoadedWeights
from vitkit.weights.hub import PREFIX, download
from vitkit.weights.licence import known_licence, print_licence
from vitkit.weights.public import DEFAULTS
from vitkit.weights.remote import download_remote
from vitkit.weights.text_embeddings import read_text_embeddings, with_text_head

log = logging.getLogger("vitkit")

# of each format: whether tensors of these names are its own, and its loader
FORMATS: tuple[tuple[Callable[[Collection[str]], bool], Callable[[Checkpoint], LoadedWeights]], ...] = (
    (native.recognises, native.load),
    (google.recognises, google.load),
    (facebook.recognises, facebook.load),
    (timm.recognises, timm.load),
    (huggingface.recognises, huggingface.load),
    (clip.recognises, clip.load),
    (siglip.recognises, siglip.load),
    (openclip.recognises, openclip.load),
    (imagegpt.recognises, imagegpt.load),
)


def load(
    source: str | os.PathLike[str],
    *,
    image: int | tuple[int, int] | None = None,
    classes: int | None = None,
    grid: tuple[int, int] | None = None,
    heads: int | None = None,
    gelu: Gelu | None = None,
    text_embeddings: str | os.PathLike[str] | None = None,
    interpolation: Interpolation | None = None,
    positions: PositionTransfer = "interpolate",
) -> Model:
    """Return a model with its weights, in evaluation mode, from a file, a folder, a URL, hf:OWNER/NAME or `ti16`.

    image           the image size, to which learned positions are resized (section 3.2)
    positions       how: "interpolate" in 2-D, "stretch" in 1-D, "fresh": re-initialise them, also at the same size, or
                    "keep", which refuses another size
    interpolation   the filter: "paper" (Google's), "bicubic" (timm's), "bicubic-no-antialias" (transformers'), "dino";
                    None: the one that the code of these weights uses where it is known, otherwise "paper"
    classes         replace the head with a zero-initialised linear layer if its number of classes differs
    grid            (rows, columns) of a checkpoint whose position table is not square
    heads           attention heads, where neither tensors nor configuration give them
    gelu            "quick", "exact" or "tanh", where a file of CLIP's weights comes without its configuration
    text_embeddings a file of class names and vectors, which become the head: zero-shot classification with CLIP, SigLIP
    """
    for name, value, known in (
        ("interpolation", interpolation, (None, *get_args(Interpolation))),
        ("positions", positions, get_args(PositionTransfer)),
        ("gelu", gelu, (None, *get_args(Gelu))),
    ):
        if value not in known:
            raise ConfigError(f"{name}={value!r} is not known", choose_from=", ".join(filter(None, known)))
    if classes is not None:
        check_count("classes", classes, least=0)
    weights = read_weights(source, grid=grid, heads=heads, gelu=gelu)
    if text_embeddings is not None:
        if classes is not None:
            raise ConfigError("text_embeddings has the classes of the head; classes= would replace it again")
        weights = with_text_head(weights, read_text_embeddings(text_embeddings), os.fspath(source))
    model = build_on_meta(weights.config)
    model.load_state_dict(weights.state, assign=True)
    model.metadata = weights.metadata
    print_licence(source, model.metadata.provenance)
    if image is not None or positions != "interpolate":
        _resize(model, source, image, interpolation, positions)
    if classes is not None and classes != model.config.classes:
        _log(
            source,
            f"head replaced: {model.config.classes} → {classes} classes, zero-initialised"
            if classes
            else f"head removed, {model.config.classes} classes",
        )
        model.replace_head(classes)
    return model.eval()


def _resize(
    model: Model,
    source: str | os.PathLike[str],
    image: int | tuple[int, int] | None,
    interpolation: Interpolation | None,
    positions: PositionTransfer,
) -> None:
    before, interpolation = model.config, interpolation or model.metadata.interpolation
    model.resize(before.image if image is None else image, interpolation, positions)
    after = model.config
    if not (isinstance(before, TokenConfig) and isinstance(after, TokenConfig)):
        return
    if after.image != before.image:
        done = describe_transfer(after, before.grid, positions)
        filtered = after.grid != before.grid and after.positions in LEARNED and positions != "fresh"
        _log(source, f"{_size(before.image)} → {_size(after.image)} px, {done}" + f", {interpolation}" * filtered)
    elif positions == "fresh":
        _log(source, describe_transfer(after, before.grid, positions))


def read_weights(
    source: str | os.PathLike[str],
    *,
    grid: tuple[int, int] | None = None,
    heads: int | None = None,
    gelu: Gelu | None = None,
) -> LoadedWeights:
    """Read a checkpoint of any format without building its model."""
    if heads is not None:
        check_count("heads", heads, least=1)
    if grid is not None:
        grid = parse_size(grid)
    path = bundled_folder(source) or _locate(os.fspath(source))
    checkpoint = replace(open_checkpoint(path), origin=redacted(os.fspath(source)), grid=grid, heads=heads, gelu=gelu)
    try:
        weights = _load_format(checkpoint)
    except ConfigError as error:
        raise WeightsError.around(f"{checkpoint.origin} describes a model that cannot be built", error) from error
    for name, requested in (("heads", heads), ("grid", grid), ("gelu", gelu)):
        actual = getattr(weights.config, name, None)
        if requested not in (None, actual):
            raise WeightsError(
                f"{checkpoint.origin} has {name} {actual}, not {requested}."
                if actual
                else f"{checkpoint.origin} is a model that has no {name}."
            )
    return _with_licence(weights, source, checkpoint.licence)


def _with_licence(weights: LoadedWeights, source: str | os.PathLike[str], stated: str | None) -> LoadedWeights:
    """Return the weights with their licence in the provenance: their own record's, our list's, or the stated one."""
    provenance = weights.metadata.provenance
    licence = provenance.get("license") or known_licence(source) or stated
    if not licence:
        return weights
    return replace(weights, metadata=replace(weights.metadata, provenance={**provenance, "license": licence}))


def _load_format(checkpoint: Checkpoint) -> LoadedWeights:
    names = checkpoint.tensors.keys()
    for recognises, load_format in FORMATS:
        if recognises(names):
            return load_format(checkpoint)
    shown = sorted(names)[:6]
    raise WeightsError(
        f"{checkpoint.origin} holds {len(names)} tensors in a format that vitkit does not know.",
        known="vitkit's own, Google's vision_transformer and big_transfer, timm's and transformers' ViTs, CLIP and "
        "SigLIP, ImageGPT, OpenCLIP's, the files of DINO's, DeiT's and MAE's authors",
        found=", ".join(shown) + (" …" if len(names) > len(shown) else "") or "no tensors",
    )


def _locate(source: str) -> Path:
    if is_url(source):
        return download_remote(source)
    if source.startswith(PREFIX):
        return download(source)
    path = Path(source).expanduser()
    if path.exists():
        return path
    try:
        configure(source)
    except ConfigError:
        siblings = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []
        near = did_you_mean(path.name, [*siblings, *(BUNDLED if path.name == source else ())])
        raise WeightsError(
            f"{source} does not exist{near or '.'}",
            **({"in_the_folder": few(siblings, 8)} if siblings else {}),
            try_="a weights file, a run folder, a URL of either, hf:OWNER/NAME, or ti16, the weights inside vitkit",
        ) from None
    public = DEFAULTS.get(source)
    raise WeightsError(
        f"{source} is the name of a model, not of a file.",
        untrained=f"vitkit.create({source!r})",
        trained=f"vitkit.load({public.source!r})" if public else "no public weights are known",
    )


def _log(source: str | os.PathLike[str], change: str) -> None:
    log.warning("%s: %s", redacted(os.fspath(source)), change)


def _size(image: tuple[int, int]) -> str:
    return str(image[0]) if image[0] == image[1] else f"{image[0]} x {image[1]}"
