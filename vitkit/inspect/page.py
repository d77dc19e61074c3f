"""inspect.html: the results of an inspection on one self-contained page, with the figures as PNGs next to it."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.inspect import figures, heatmaps
from vitkit.inspect.distance import AttentionDistance
from vitkit.inspect.embeddings import similarity_by_offset, similarity_by_steps
from vitkit.inspect.image_set import InspectedImage
from vitkit.inspect.inspect_folder import GENERATOR, PAGE, InspectFolder
from vitkit.inspect.inspection import Inspection, TokenAttention
from vitkit.inspect.mask_section import mask_section
from vitkit.inspect.page_code import python_code
from vitkit.inspect.query_token import default_token, describe_token
from vitkit.model.build import TokenModel
from vitkit.model.config import TokenConfig
from vitkit.model.variants import name_of
from vitkit.pages.html import KeyFigure, write_html
from vitkit.pages.inline_images import InlineImage, inline_image
from vitkit.text import counted, image_size

LARGEST = 448  # pixels of an inline image along its longer side, at most


def write_page(inspection: Inspection, folder: Path, source: str) -> list[Path]:
    """Write inspect.html and the PNGs and return their paths, the page first; `source` is where the weights are."""
    output = InspectFolder(folder)
    content = (
        _summary(inspection)
        | mask_section(inspection, output)
        | _image_rows(inspection, output)
        | _distance(inspection, output)
        | _embeddings(inspection, output)
        | _completions(inspection, output)
        | {"source": source, "generator": GENERATOR, "code": python_code(inspection, source)}
    )
    path = write_html(folder / PAGE, "vitkit.inspect", PAGE, content)
    return [path, *(folder / name for name in output.files)]


def _summary(inspection: Inspection) -> dict[str, Any]:
    config, images = inspection.model.config, inspection.image_set
    key_figures = [KeyFigure("Input", image_size(config.image), counted(config.channels, "channel"))]
    tokens = config if isinstance(config, TokenConfig) else None
    if tokens is not None:
        (h, w), side = tokens.grid, tokens.stride
        key_figures += [
            KeyFigure("Patches", f"{h} x {w}", f"one token for {f'{side} x {side} px' if side > 1 else 'a pixel'}"),
            KeyFigure("Attention", f"{tokens.depth} x {tokens.heads}", "layers x heads"),
        ]
    if inspection.distance is not None:
        first, last = inspection.distance.per_block[[0, -1]]
        key_figures.append(KeyFigure("Attention distance", f"{first:.0f} → {last:.0f} px", "first layer → last"))
    return {
        "subject": name_of(config) or "a model of its own size",
        "figures": key_figures,
        "images": counted(len(images.images), "image"),
        "sampled": images.total > len(images.images) + len(images.skipped),
        "total": images.total,
        "skipped": images.skipped,
        "not_applicable": inspection.not_applicable,
        "resnet": tokens is None,
        "pixels": tokens is not None and tokens.stride == 1,
        "causal": tokens is not None and tokens.input_delay > 0,
    }


def _image_rows(inspection: Inspection, output: InspectFolder) -> dict[str, Any]:
    rows = []
    for index, image in enumerate(inspection.shown):
        pixels = _pixels(image)
        columns = [(pixels, "model input")]
        if inspection.rollout is not None:
            columns.append((heatmaps.overlay(pixels, inspection.rollout[index]), "rollout"))
        if inspection.relevance is not None:
            relevance = heatmaps.overlay(pixels, inspection.relevance.maps[index])
            columns.append((relevance, _prediction(inspection, index)))
        columns.append((heatmaps.patches_to_pixels(inspection.dense_colours[index], pixels.shape[:2]), "features"))
        output.add_image(heatmaps.side_by_side([column for column, _ in columns]), f"image-{index + 1}")
        rows.append({"name": image.name, "images": [(_inline(column), caption) for column, caption in columns]})
    return {
        "rows": rows,
        "token_grids": [_attention_grids(inspection, attention, output) for attention in inspection.attention],
        "has_rollout": inspection.rollout is not None,
        "has_relevance": inspection.relevance is not None,
        "without_identity": _without_identity(inspection),
        "from_class": isinstance(inspection.model, TokenModel) and default_token(inspection.model) == "class",
    }


def _pixels(image: InspectedImage) -> NDArray[np.uint8]:
    return heatmaps.enlarge_pixels(image.rgb, LARGEST // 2)


def _inline(pixels: NDArray[np.uint8]) -> InlineImage:
    return inline_image(pixels, LARGEST, quality=88)


def _without_identity(inspection: Inspection) -> list[tuple[str, InlineImage]]:
    if inspection.rollout_without_identity is None:
        return []
    pairs = zip(inspection.shown, inspection.rollout_without_identity, strict=True)
    return [(image.name, _inline(heatmaps.overlay(_pixels(image), weights))) for image, weights in pairs]


def _attention_grids(inspection: Inspection, attention: TokenAttention, output: InspectFolder) -> dict[str, Any]:
    token, labels = attention.token, [layer.label for layer in attention.attention_layers]
    suffix = token if isinstance(token, str) else "-".join(map(str, token))
    grids = []
    for index, image in enumerate(inspection.shown):
        pixels = _pixels(image)
        if isinstance(token, tuple) and isinstance(inspection.model, TokenModel):
            pixels = heatmaps.outline_patch(pixels, inspection.model.config.grid, token)
        svg = output.add_figure(
            figures.draw_attention(attention.maps[index], labels, attention.heads),
            f"attention-{index + 1}-{suffix}",
            f"Attention of {describe_token(token)} by layer and head, in {image.name}",
        )
        grids.append({"image": _inline(pixels), "name": image.name, "svg": svg})
    return {"token": describe_token(token), "grids": grids}


def _distance(inspection: Inspection, output: InspectFolder) -> dict[str, Any]:
    distance = inspection.distance
    if distance is None:
        return {"distance": None, "examples": []}
    config = inspection.model.config
    tokens = config if isinstance(config, TokenConfig) else None
    grid = tokens.grid if tokens else tuple(-(-side // distance.stride) for side in config.image)
    svg = output.add_figure(
        figures.draw_distance(distance), "distance", "Mean attention distance by layer, a dot per head"
    )
    most = max((float(example.shares.max()) for example in inspection.examples), default=0)
    furthest = max((len(example.shares) for example in inspection.examples), default=0)
    examples = []
    for suffix, example in zip(("near", "far"), inspection.examples, strict=False):
        pixels = heatmaps.overlay(_pixels(inspection.shown[0]), example.weights, brightest=100)
        pixels = heatmaps.outline_patch(pixels, (grid[0], grid[1]), inspection.query_patch)
        figure = figures.draw_profile(example.shares, example.mean, distance.stride, most, furthest)
        name = f"layer {example.attention_layer.label}, head {example.head}"
        examples.append(
            {
                "title": name[0].upper() + name[1:],
                "image": _inline(pixels),
                "svg": output.add_figure(figure, f"distance-{suffix}", f"Weight by distance in {name}"),
            }
        )
    corner = math.hypot(grid[0] - 1, grid[1] - 1) * distance.stride
    return {
        "distance": svg,
        "examples": examples,
        "verdict": _verdict(distance),
        "uniform": f"{distance.uniform:.0f} px",
        "corner": f"{corner:.0f} px",
        "class_token": tokens is not None and tokens.class_token,
        "more_special_tokens": tokens is not None and tokens.special_tokens > tokens.class_token,
        "special_share": f"{100 * distance.special_share:.0f} %",
        "axial": bool(distance.attention_layers[0].axis),
    }


def _verdict(distance: AttentionDistance) -> str:
    per_head, layers = distance.per_head, distance.attention_layers
    near, far = (np.unravel_index(index, per_head.shape) for index in (per_head.argmin(), per_head.argmax()))
    sentence = (
        f"The most local head is head {near[1]} of layer {layers[near[0]].label}, at {per_head[near]:.0f} px; "
        f"the most global is head {far[1]} of layer {layers[far[0]].label}, at {per_head[far]:.0f} px."
    )
    depth = len(distance.per_block)
    if depth == 1:
        return sentence
    third = max(depth // 3, 1)
    low, high = float(distance.per_block[:third].mean()), float(distance.per_block[-third:].mean())
    if high > 1.15 * low:
        return (
            f"As in the paper, the distance grows with depth: {low:.0f} px in the first third of the layers, "
            f"{high:.0f} px in the last. {sentence}"
        )
    return (
        f"Unlike in the paper, the distance does not grow with depth here: {low:.0f} px in the first third of the "
        f"layers, {high:.0f} px in the last. {sentence}"
    )


def _embeddings(inspection: Inspection, output: InspectFolder) -> dict[str, Any]:
    filters, similarity = inspection.filters, inspection.similarity
    content: dict[str, Any] = {"filters": None, "positions": None, "positions_by_distance": None}
    if filters is not None:
        components = figures.draw_filters(filters)
        content |= {
            "filters": output.add_figure(components, "filters", "Principal components of the filters"),
            "count": len(filters.components),
            "filter_layer": filters.layer,
            "share": f"{100 * filters.shares.sum():.0f} %",
        }
    if similarity is not None and isinstance(inspection.model, TokenModel):
        content["positions"] = output.add_figure(
            figures.draw_similarity(similarity),
            "positions",
            "Cosine similarity of position embeddings, a small map for each patch",
        )
        figure = figures.draw_similarity_by_distance(similarity_by_steps(similarity), *similarity_by_offset(similarity))
        content["positions_by_distance"] = output.add_figure(
            figure, "positions-by-distance", "Cosine similarity by distance"
        )
        content["position_kind"] = inspection.model.config.positions
        content["every_layer"] = inspection.model.config.inject == "every"
    return content


def _completions(inspection: Inspection, output: InspectFolder) -> dict[str, Any]:
    drawn = inspection.completions
    if drawn is None:
        return {"completions": []}
    rows = []
    for index, image in enumerate(inspection.shown):
        columns = [("original", drawn.original[index]), ("upper half", drawn.prompt[index])]
        columns += [(f"sample {number + 1}", sample) for number, sample in enumerate(drawn.completed[index])]
        enlarged = [heatmaps.enlarge_pixels(pixels, LARGEST // 4) for _, pixels in columns]
        rows.append((image.name, enlarged, [name for name, _ in columns], drawn.bits_per_pixel[index]))
    output.add_image(heatmaps.below_each_other([heatmaps.side_by_side(row[1]) for row in rows]), "completions")
    return {
        "completions": [
            {
                "name": name,
                "bits": f"{bits:.2f} bits per pixel",
                "images": [(inline_image(one), caption) for one, caption in zip(enlarged, captions, strict=True)],
            }
            for name, enlarged, captions, bits in rows
        ],
        "sampling": str(drawn.sampling),
        "colours": len(drawn.palette),
    }


def _prediction(inspection: Inspection, index: int) -> str:
    assert inspection.relevance is not None
    prediction, labels = int(inspection.relevance.classes[index]), inspection.model.metadata.labels
    probability = inspection.relevance.probabilities[index]
    return f"{labels[prediction] if labels else f'class {prediction}'}, {100 * probability:.0f} %"
