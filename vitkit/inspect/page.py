"""inspect.html: what was found inside a model, to look at; self-contained, with the figures as PNGs beside it."""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray
from PIL import Image

from vitkit.atomic import write_text
from vitkit.inspect import figures, rasters
from vitkit.inspect.album import MARK, PAGE, Album
from vitkit.inspect.distance import AttentionDistance
from vitkit.inspect.embeddings import similarity_by_offset, similarity_by_steps
from vitkit.inspect.findings import SHOWN, Attention, Findings
from vitkit.inspect.pictures import Picture
from vitkit.inspect.tokens import default_token, named
from vitkit.model.variants import name_of
from vitkit.model.vit import VisionTransformer
from vitkit.report.pictures import Embedded
from vitkit.text import counted, image_size

LARGEST = 448  # pixels that an embedded picture has at most along a side


@dataclass(frozen=True)
class Tile:
    picture: Embedded
    caption: str
    description: str


@dataclass(frozen=True)
class Sight:
    """One picture and what the model makes of it."""

    name: str
    tiles: list[Tile]


def write_page(found: Findings, folder: Path, source: str) -> list[Path]:
    """inspect.html first, then the PNGs; `source` is where the weights came from."""
    album = Album(folder)
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("vitkit.inspect", "."), PackageLoader("vitkit.report", ".")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    content = _summary(found) | _sights(found, album) | _distance(found, album) | _embeddings(found, album)
    page = environment.get_template("page.html").render(
        content, not_here=found.not_here, source=source, mark=MARK, code=_code(found, source)
    )
    path = folder / PAGE
    # file names need not be text; what cannot be written as UTF-8 is spelled out
    write_text(path, page.lstrip().encode("utf-8", "backslashreplace").decode("utf-8"))
    return [path, *(folder / name for name in album.files)]


def _summary(found: Findings) -> dict[str, Any]:
    config, pictures = found.model.config, len(found.gallery.pictures)
    keys = [("Picture", image_size(config.image), f"{config.channels} channels")]
    if isinstance(found.model, VisionTransformer):
        vit = found.model.config
        keys += [
            ("Patches", f"{vit.grid[0]} x {vit.grid[1]}", f"one token for {vit.stride} x {vit.stride} px"),
            ("Attention", f"{vit.depth} x {vit.heads}", "layers x heads"),
        ]
    if found.distance is not None:
        first, last = found.distance.by_depth[[0, -1]]
        keys.append(("Attention distance", f"{first:.0f} → {last:.0f} px", "first layer → last"))
    return {
        "subject": name_of(config) or "a model of its own size",
        "keys": keys,
        "pictures": counted(pictures, "picture"),
        "skipped": found.gallery.skipped,
        "chosen": found.gallery.found > pictures + len(found.gallery.skipped),
        "of": found.gallery.found,
        "resnet": not isinstance(found.model, VisionTransformer),
    }


def _sights(found: Findings, album: Album) -> dict[str, Any]:
    sights = []
    for index, picture in enumerate(found.shown):
        photo = _photo(picture)
        shown = [(photo, "what the model sees")]
        if found.rollout is not None:
            shown.append((rasters.lit(photo, found.rollout[index]), "rollout"))
        if found.relevance is not None:
            shown.append((rasters.lit(photo, found.relevance.maps[index]), _answer(found, index)))
        shown.append((rasters.blocks(found.dense[index], photo.shape[:2]), "features"))
        album.picture(rasters.beside([pixels for pixels, _ in shown]), f"picture-{index + 1}")
        sights.append(
            Sight(
                picture.name, [Tile(_embed(pixels), caption, f"{picture.name}: {caption}") for pixels, caption in shown]
            )
        )
    return {
        "sights": sights,
        "grids": [_grids(found, one, album) for one in found.attention],
        "rolled": found.rollout is not None,
        "relevant": found.relevance is not None,
        "literal": _literal(found),
        "from_class": isinstance(found.model, VisionTransformer) and default_token(found.model) == "class",
    }


def _photo(picture: Picture) -> NDArray[np.uint8]:
    return rasters.enlarged(picture.pixels, LARGEST // 2)


def _literal(found: Findings) -> list[Tile]:
    """Rollout without the identity."""
    if found.literal is None:
        return []
    return [
        Tile(_embed(rasters.lit(_photo(picture), maps)), "", f"{picture.name}: rollout without the identity")
        for picture, maps in zip(found.shown, found.literal, strict=True)
    ]


def _grids(found: Findings, one: Attention, album: Album) -> dict[str, Any]:
    suffix = one.token if isinstance(one.token, str) else "-".join(map(str, one.token))
    drawn = []
    for index, picture in enumerate(found.shown):
        figure = figures.draw_attention(one.maps[index], [view.label for view in one.views], one.heads)
        photo = _photo(picture)
        if isinstance(one.token, tuple) and isinstance(found.model, VisionTransformer):
            photo = rasters.outlined(photo, found.model.config.grid, one.token)
        svg = album.figure(
            figure,
            f"attention-{index + 1}-{suffix}",
            f"Attention of {named(one.token)} by layer and head, in {picture.name}",
        )
        drawn.append({"photo": _embed(photo), "name": picture.name, "svg": svg})
    return {"token": named(one.token), "drawn": drawn}


def _distance(found: Findings, album: Album) -> dict[str, Any]:
    distance = found.distance
    if distance is None:
        return {"distance": None, "examples": []}
    assert isinstance(found.model, VisionTransformer)
    svg = album.figure(figures.draw_distance(distance), "distance", "Mean attention distance by layer, a dot per head")
    most = max((float(one.shares.max()) for one in found.examples), default=0)
    furthest = max((len(one.shares) for one in found.examples), default=0)
    examples = []
    for word, one in zip(("near", "far"), found.examples, strict=False):
        photo = rasters.lit(_photo(found.shown[0]), one.maps, brightest=100)
        photo = rasters.outlined(photo, found.model.config.grid, found.patch)
        figure = figures.draw_profile(one.shares, one.mean, distance.stride, most, furthest)
        where = f"layer {one.view.label}, head {one.head}"
        examples.append(
            {
                "title": where[0].upper() + where[1:],
                "photo": _embed(photo),
                "mean": f"{one.mean:.0f} px",
                "svg": album.figure(figure, f"distance-{word}", f"Weight by distance in {where}"),
            }
        )
    h, w = found.model.config.grid
    corner = math.hypot(h - 1, w - 1) * distance.stride
    return {
        "distance": svg,
        "examples": examples,
        "verdict": _verdict(distance),
        "uniform": f"{distance.uniform:.0f} px",
        "corner": f"{corner:.0f} px",
        "class_token": found.model.config.class_token,
        "axial": found.model.config.axial,
    }


def _verdict(distance: AttentionDistance) -> str:
    near, far = (
        np.unravel_index(place, distance.heads.shape) for place in (distance.heads.argmin(), distance.heads.argmax())
    )
    sentence = (
        f"The most local head is head {near[1]} of layer {distance.views[near[0]].label}, at "
        f"{distance.heads[near]:.0f} px; the widest is head {far[1]} of layer {distance.views[far[0]].label}, "
        f"at {distance.heads[far]:.0f} px."
    )
    depth = len(distance.by_depth)
    if depth == 1:
        return sentence
    third = max(depth // 3, 1)
    low, high = float(distance.by_depth[:third].mean()), float(distance.by_depth[-third:].mean())
    if high > 1.15 * low:
        return (
            f"As in the paper, the distance grows with depth: {low:.0f} px in the first third of the layers, "
            f"{high:.0f} px in the last. {sentence}"
        )
    return (
        f"Unlike in the paper, the distance does not grow with depth here: {low:.0f} px in the first third of the "
        f"layers, {high:.0f} px in the last. {sentence}"
    )


def _embeddings(found: Findings, album: Album) -> dict[str, Any]:
    filters = found.filters
    content: dict[str, Any] = {
        "filters": album.figure(figures.draw_filters(filters), "filters", "Principal components of the filters"),
        "count": len(filters.components),
        "filtered": filters.of,
        "share": f"{100 * filters.shares.sum():.0f} %",
        "positions": None,
        "falloff": None,
    }
    if found.similarity is not None and isinstance(found.model, VisionTransformer):
        content["positions"] = album.figure(
            figures.draw_similarity(found.similarity),
            "positions",
            "Cosine similarity of position embeddings, a small map for each patch",
        )
        falloff = figures.draw_falloff(similarity_by_steps(found.similarity), *similarity_by_offset(found.similarity))
        content["falloff"] = album.figure(falloff, "positions-by-distance", "Cosine similarity by distance")
        content["kind"] = found.model.config.positions
        content["own"] = found.model.config.inject == "every"
    return content


def _answer(found: Findings, index: int) -> str:
    assert found.relevance is not None
    answer, labels = int(found.relevance.classes[index]), found.model.metadata.labels
    return f"{labels[answer] if labels else f'class {answer}'}, {100 * found.relevance.probabilities[index]:.0f} %"


def _code(found: Findings, source: str) -> str:
    """How to get at the arrays that were drawn; runs as it stands, but for the folder of pictures."""
    calls = [
        ("embeddings", "filter_components(model)", "(n, side, side, channels)"),
        ("dense", "dense_features(model, images)", "(pictures, rows, columns, width)"),
    ]
    if found.similarity is not None:
        calls.append(("embeddings", "position_similarity(model)", "(rows, columns, rows, columns)"))
    if found.rollout is not None:
        calls += [
            ("attention", "attention_maps(model, images)", "(pictures, layers, heads, rows, columns)"),
            ("rollout", "rollout(model, images)", "(pictures, rows, columns)"),
            ("distance", "attention_distance(model, images)", ".heads, .layers: pixels"),
        ]
    if found.relevance is not None:
        calls.append(("relevance", "relevance(model, images)", ".maps, .classes"))
    column = max(len(call) + len(module) for module, call, _ in calls) + 1
    lines = [f"{f'{module}.{call}':<{column}}  # {shape}" for module, call, shape in calls]
    modules = ", ".join(sorted({module for module, _, _ in calls}))
    height, width = found.model.config.image
    image = height if height == width else (height, width)
    return "\n".join(
        [
            "import vitkit",
            f"from vitkit.inspect import {modules}",
            "from vitkit.inspect.pictures import open_gallery",
            "",
            f"model = vitkit.load({source!r}, image={image})",
            'gallery = open_gallery(model, ["photos/"])',
            f"images = gallery.images(gallery.spread({SHOWN}))  # (pictures, channels, height, width)",
            "",
            *lines,
        ]
    )


def _embed(pixels: NDArray[np.uint8]) -> Embedded:
    picture = Image.fromarray(pixels)
    picture.thumbnail((LARGEST, LARGEST), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=88)
    content = base64.b64encode(file.getvalue()).decode("ascii")
    return Embedded(f"data:image/jpeg;base64,{content}", picture.width, picture.height)
