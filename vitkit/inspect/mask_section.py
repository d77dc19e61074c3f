"""The part of inspect.html about masks: each image with its mask, and its queries or its classes as heat maps."""

from typing import Any

from vitkit.data.masks.palette import Palette, stored_palette
from vitkit.inspect import heatmaps
from vitkit.inspect.inspect_folder import InspectFolder
from vitkit.inspect.inspection import Inspection
from vitkit.inspect.masks import SHOWN, FoundClass, FoundQuery, InspectedMask
from vitkit.model.segmenter import Segmenter
from vitkit.pages.inline_images import inline_image
from vitkit.pages.mask_overlay import draw_mask
from vitkit.text import counted

LARGEST, SMALL = 640, 200  # pixels of an inline image along its longer side, at most
LEGEND = 16  # classes named beside a mask


def mask_section(inspection: Inspection, output: InspectFolder) -> dict[str, Any]:
    """Return what the template needs, and write the PNGs."""
    model = inspection.model
    if inspection.masks is None or not isinstance(model, Segmenter):
        return {"masks": [], "queries": None}
    palette = stored_palette(model.metadata.provenance, model.config.classes)
    names = model.metadata.labels or tuple(f"class {number}" for number in range(model.config.classes))
    queries = model.config.head == "queries"
    return {
        "masks": [
            _row(inspection, index, found, names, palette, output) for index, found in enumerate(inspection.masks)
        ],
        "queries": counted(model.config.queries, "query", "queries") if queries else None,
        "query_blocks": model.config.query_blocks,
        "shown_at_most": SHOWN,
    }


def _row(
    inspection: Inspection,
    index: int,
    found: InspectedMask,
    names: tuple[str, ...],
    palette: Palette,
    output: InspectFolder,
) -> dict[str, Any]:
    image = inspection.shown[index]
    pixels = heatmaps.enlarge_pixels(image.rgb, LARGEST // 2)
    mask = heatmaps.enlarge_pixels(found.mask, LARGEST // 2)
    drawn = draw_mask(pixels, mask, palette)
    output.add_image(heatmaps.side_by_side([pixels, drawn]), f"mask-{index + 1}")
    small = heatmaps.enlarge_pixels(image.rgb, SMALL // 2)
    cells = (
        [_query_cell(one, small, names, palette) for one in found.queries]
        if found.queries
        else [_class_cell(one, small, names, palette) for one in found.classes[:SHOWN]]
    )
    sheet = heatmaps.below_each_other([heatmaps.side_by_side([heat for _, heat in cell["heat"]]) for cell in cells])
    output.add_image(sheet, f"{'queries' if found.queries else 'classes'}-{index + 1}")
    for cell in cells:
        cell["heat"] = [(caption, inline_image(heat, SMALL)) for caption, heat in cell["heat"]]
    return {
        "name": image.name,
        "image": inline_image(pixels, LARGEST, quality=88),
        "mask": inline_image(drawn, LARGEST, quality=88),
        "legend": [
            {"name": names[one.number], "colour": _css(palette[one.number]), "share": _percent(one.share)}
            for one in found.classes[:LEGEND]
        ],
        "more": max(len(found.classes) - LEGEND, 0),
        "cells": cells,
        "winners": found.winners,
        "left_out": (found.winners if found.queries else len(found.classes)) - len(cells),
    }


def _query_cell(one: FoundQuery, pixels: heatmaps.Pixels, names: tuple[str, ...], palette: Palette) -> dict[str, Any]:
    return {
        "title": f"{names[one.number]}, {_percent(one.confidence)}",
        "note": f"query {one.query}, {_percent(one.share)} of the image",
        "colour": _css(palette[one.number]),
        "heat": [
            ("mask", heatmaps.overlay_probability(pixels, one.mask)),
            ("attention", heatmaps.overlay(pixels, one.attention)),
        ],
    }


def _class_cell(one: FoundClass, pixels: heatmaps.Pixels, names: tuple[str, ...], palette: Palette) -> dict[str, Any]:
    return {
        "title": names[one.number],
        "note": f"{_percent(one.share)} of the image",
        "colour": _css(palette[one.number]),
        "heat": [("probability", heatmaps.overlay_probability(pixels, one.probability))],
    }


def _css(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def _percent(share: float) -> str:
    """Return a share in whole percent; what is there, but rounds to none of it, is below 1 %."""
    return f"{100 * share:.0f} %" if share >= 0.005 or not share else "< 1 %"
