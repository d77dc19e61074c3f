"""Colours of classes, for masks that come without: PASCAL VOC's colormap, which people know and tools share."""

from collections.abc import Mapping
from typing import Any

Colour = tuple[int, int, int]
Palette = tuple[Colour, ...]


def default_palette(classes: int) -> Palette:
    """Return a colour for each class number: the bits of the number, spread over the high bits of red, green and blue.

    Class 0 is black, and classes with near numbers have colours that are far apart.
    """
    return tuple(map(_colour, range(classes)))


def stored_palette(provenance: Mapping[str, Any], classes: int) -> Palette:
    """Return the colours of a model's classes, from its provenance or else the default ones."""
    stored = provenance.get("palette")
    if not isinstance(stored, list | tuple) or len(stored) != classes:
        return default_palette(classes)
    try:
        colours = [(int(red), int(green), int(blue)) for red, green, blue in stored]
    except (TypeError, ValueError):
        return default_palette(classes)
    return tuple(colours) if all(0 <= v <= 255 for colour in colours for v in colour) else default_palette(classes)


def _colour(number: int) -> Colour:
    red = green = blue = 0
    for shift in range(7, -1, -1):
        red |= (number & 1) << shift
        green |= (number >> 1 & 1) << shift
        blue |= (number >> 2 & 1) << shift
        number >>= 3
    return red, green, blue
