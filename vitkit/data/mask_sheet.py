"""A contact sheet of segmentation data: images beside themselves under their masks, and a legend of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from vitkit.data.decode import decode
from vitkit.data.fonts import Fonts
from vitkit.data.masks.ignore import IGNORE
from vitkit.data.masks.palette import Palette, default_palette
from vitkit.data.sheet_style import EMPTY, FAINT, GAP, INK, LINE, MARGIN, PAPER
from vitkit.data.sources.dataset import Data, DataError, Split
from vitkit.errors import DecodeError
from vitkit.text import counted

IMAGES, COLUMNS = 12, 3
TILE = 200  # the longer side of an image
OPACITY = 0.55  # of a mask over its image
STRIPE = 8  # pixels from one stripe of ignored pixels to the next
STRIPES = (200, 200, 200), (110, 110, 110)
ENTRY, SWATCH = 190, 13  # width of an entry of the legend, side of its colour
MOST_ENTRIES = 60


@dataclass(frozen=True)
class _Pair:
    key: str
    image: Image.Image
    overlay: Image.Image
    classes: frozenset[int]  # and IGNORE


def mask_sheet(data: Data, channels: int) -> Image.Image:
    """Draw images of the first split with masks, evenly spread, each beside itself under its mask."""
    palette = data.palette or default_palette(len(data.classes))
    name, split = next((name, split) for name, split in data.splits.items() if split.labelled)
    pairs = _pairs(split, palette, channels)
    shown = sorted(set[int]().union(*(pair.classes for pair in pairs)) - {IGNORE})
    entries = [(data.classes[number], palette[number]) for number in shown[:MOST_ENTRIES]]
    fonts = Fonts([data.name, *(entry for entry, _ in entries), *(pair.key for pair in pairs)])
    subtitle = f"{counted(len(pairs), 'image')} of {name} with masks"
    if len(entries) < len(data.classes):
        subtitle += f"; {len(entries)} of {len(data.classes)} classes are on it"
    has_ignored = any(IGNORE in pair.classes for pair in pairs)
    return _draw(f"{data.name}: masks over images", subtitle, pairs, entries, has_ignored, fonts)


def _pairs(split: Split, palette: Palette, channels: int) -> list[_Pair]:
    """Return evenly spread images whose masks can be read."""
    masked = split.rows_with_labels()
    chosen = masked[np.linspace(0, len(masked) - 1, min(2 * IMAGES, len(masked))).astype(int)]
    spread = [*chosen[::2], *chosen[1::2]]  # the others stand in for those that cannot be read
    pairs: dict[int, _Pair] = {}
    for index in map(int, spread):
        if len(pairs) < IMAGES and (pair := _pair(split, index, palette, channels)):
            pairs[index] = pair
    return [pairs[index] for index in sorted(pairs)]


def _pair(split: Split, index: int, palette: Palette, channels: int) -> _Pair | None:
    try:
        pixels = decode(split.read(index), channels=channels)
        mask = split.read_mask(index, (pixels.shape[0], pixels.shape[1]))
    except (DecodeError, DataError):
        return None
    shown = pixels[:, :, 0] if channels < 3 else pixels[:, :, :3]
    image = Image.fromarray(np.ascontiguousarray(shown).round().clip(0, 255).astype(np.uint8)).convert("RGB")
    scale = TILE / max(image.size)
    size = max(round(image.width * scale), 1), max(round(image.height * scale), 1)
    image = image.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BICUBIC)
    small = np.asarray(Image.fromarray(mask).resize(size, Image.Resampling.NEAREST))
    return _Pair(split.keys[index], image, draw_mask(image, small, palette), frozenset(np.unique(mask).tolist()))


def draw_mask(image: Image.Image, mask: NDArray[np.uint8], palette: Palette, opacity: float = OPACITY) -> Image.Image:
    """Return the image under its mask of the same size: classes in colours, lines between, ignored pixels striped."""
    colours = np.zeros((256, 3), np.float32)
    colours[: len(palette)] = np.reshape(palette, (-1, 3))
    over = colours[mask]
    row, column = np.indices(mask.shape)
    light, dark = np.array(STRIPES, np.float32)
    stripes = np.where(np.expand_dims((row + column) % STRIPE < STRIPE // 2, 2), light, dark)
    over = np.where(np.expand_dims(mask == IGNORE, 2), stripes, over)
    blended = (1 - opacity) * np.asarray(image, np.float32) + opacity * over
    border = np.zeros(mask.shape, bool)
    border[1:] |= mask[1:] != mask[:-1]
    border[:, 1:] |= mask[:, 1:] != mask[:, :-1]
    blended[border] = (blended[border] + 255) / 2  # half of it: thin objects are nothing but border
    return Image.fromarray(blended.round().astype(np.uint8))


def _draw(
    title: str,
    subtitle: str,
    pairs: Sequence[_Pair],
    entries: Sequence[tuple[str, tuple[int, int, int]]],
    has_ignored: bool,
    fonts: Fonts,
) -> Image.Image:
    cell = 2 * TILE + GAP // 2
    columns = min(COLUMNS, max(len(pairs), 1))
    rows = [pairs[first : first + columns] for first in range(0, len(pairs), columns)]
    heights = [max(pair.image.height for pair in row) for row in rows]
    width = max(2 * MARGIN + columns * (cell + 2 * GAP) - 2 * GAP, 520)
    per_line = max((width - 2 * MARGIN) // ENTRY, 1)
    legend = [*entries, *([("ignored", None)] if has_ignored else [])]
    lines = -(-len(legend) // per_line)
    top = MARGIN + 52
    height = top + sum(heights) + len(rows) * (LINE + GAP) + lines * (SWATCH + GAP) + 2 * MARGIN
    sheet = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(sheet)
    fonts.draw(pen, (MARGIN, MARGIN), fonts.shorten(title, width - 2 * MARGIN, 18), INK, 18)
    fonts.draw(pen, (MARGIN, MARGIN + 26), fonts.shorten(subtitle, width - 2 * MARGIN, 12), FAINT, 12)
    for row, tall in zip(rows, heights, strict=True):
        for column, pair in enumerate(row):
            left = MARGIN + column * (cell + 2 * GAP)
            fonts.draw(pen, (left, top), fonts.shorten(pair.key, cell, 11), FAINT, 11)
            for offset, tile in ((0, pair.image), (TILE + GAP // 2, pair.overlay)):
                sheet.paste(EMPTY, (left + offset, top + LINE, left + offset + TILE, top + LINE + tall))
                sheet.paste(tile, (left + offset + (TILE - tile.width) // 2, top + LINE + (tall - tile.height) // 2))
        top += tall + LINE + GAP
    top += GAP
    for number, (name, colour) in enumerate(legend):
        left, line = MARGIN + number % per_line * ENTRY, top + number // per_line * (SWATCH + GAP)
        sheet.paste(_swatch(colour), (left, line))
        pen.rectangle((left, line, left + SWATCH - 1, line + SWATCH - 1), outline=FAINT)
        fonts.draw(pen, (left + SWATCH + GAP, line), fonts.shorten(name, ENTRY - SWATCH - 2 * GAP, 12), INK, 12)
    return sheet


def _swatch(colour: tuple[int, int, int] | None) -> Image.Image:
    """Return a square of a colour, or of the stripes of ignored pixels."""
    blank = Image.new("RGB", (SWATCH, SWATCH), colour or PAPER)
    if colour is not None:
        return blank
    return draw_mask(blank, np.full((SWATCH, SWATCH), IGNORE, np.uint8), (), opacity=1)
