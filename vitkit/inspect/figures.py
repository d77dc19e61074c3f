"""What the analyses return, drawn: matplotlib figures that a page sets inline and a folder gets as PNGs.

Shapes: V views (layers), H heads, h x w patch grid, n components, P side of a filter, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from vitkit.inspect.distance import AttentionDistance
from vitkit.inspect.embeddings import Filters
from vitkit.inspect.rasters import COSINE, Floats, heat, mosaic, unit
from vitkit.pages.svg import ACCENT, MUTED, RULE, SECOND, canvas, drawing

TILE = 64  # CSS pixels that a head's map takes along its longer side
WIDEST = 820  # CSS pixels beside a photo
ACROSS = 14  # filters in a row


def draw_attention(maps: Floats, labels: Sequence[str], heads: Sequence[int]) -> Figure:
    """(V, H, h, w): a column for each layer, a row for each head, each map from its darkest to its brightest patch."""
    h, w = maps.shape[2:]
    tile = min(TILE, (WIDEST - 60) / len(labels) * 0.94)
    scale = tile / max(h, w)  # CSS pixels of a patch
    times = max(round(2 * scale), 1)  # its pixels in the picture: sharp on a fine screen
    tiles = np.array([[heat(unit(one)) for one in row] for row in maps.swapaxes(0, 1)])
    sheet = mosaic(tiles, max(round(0.06 * tile * times / scale), 1), times)
    with drawing():
        return _sheet(
            sheet,
            sheet.shape[1] * scale / times,
            sheet.shape[0] * scale / times,
            left=[f"head {head}" for head in heads],
            top=labels,
            corner="layer",
        )


def draw_distance(found: AttentionDistance) -> Figure:
    """Fig. 7 right: a dot for each head, a line through the means of the layers."""
    with drawing():
        figure = canvas(460, 340)
        axes = figure.add_axes((58 / 460, 48 / 340, 1 - 66 / 460, 1 - 84 / 340))
        places = np.arange(len(found.views))
        for head, distances in enumerate(found.heads.T):
            axes.scatter(
                places,
                distances,
                s=34,
                color=ACCENT,
                alpha=0.75,
                linewidth=0,
                zorder=3,
                label=None if head else "a head",
            )
        axes.plot(places, found.layers, color=SECOND, linewidth=2, label="their mean", zorder=2)
        axes.axhline(found.uniform, color=MUTED, linewidth=1, linestyle=(0, (4, 3)), label="looking everywhere alike")
        halves = 2 if found.views[0].along else 1  # an axial layer attends twice
        axes.set(
            xlabel="layer: rows, then columns" if halves == 2 else "layer",
            ylabel="attention distance, pixels",
            ylim=(0, 1.08 * max(float(found.heads.max()), found.uniform, 1)),
        )
        every = halves * math.ceil(len(places) / halves / 12)
        axes.set_xticks(places[::every], [str(view.layer) for view in found.views[::every]])
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.02), ncols=3, columnspacing=1.4)
        return figure


def draw_profile(shares: Floats, mean: float, stride: int, most: float, furthest: int) -> Figure:
    """Where one head's weights lie: their share by distance, and the mean distance as a mark."""
    with drawing():
        figure = canvas(400, 190)
        axes = figure.add_axes((54 / 400, 46 / 190, 1 - 66 / 400, 1 - 60 / 190))
        axes.bar(stride * np.arange(len(shares)), 100 * shares, 0.8 * stride, color=ACCENT, alpha=0.75)
        axes.axvline(mean, color=SECOND, linewidth=2)
        right = mean > stride * furthest / 2
        axes.annotate(
            f"mean: {mean:.0f} px",
            (mean, 0.98),
            (-6 if right else 6, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right" if right else "left",
            va="top",
            color=SECOND,
            fontsize=12,
        )
        axes.set(
            xlim=(-0.6 * stride, (furthest + 0.6) * stride), ylim=(0, 108 * most), xlabel="pixels away", ylabel="weight"
        )
        axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.3g} %"))
        return figure


def draw_similarity(similarity: Floats) -> Figure:
    """Fig. 7 centre: in each patch's place, a small map of how alike its position is to all the others."""
    h, w = similarity.shape[:2]
    side = 520 / max(h, w)
    times = max(round(2 * side / max(h, w)), 1)
    sheet = mosaic(heat((similarity + 1) / 2, COSINE), max(round(0.08 * times * max(h, w)), 1), times)
    with drawing():
        return _sheet(
            sheet,
            side * w,
            side * h,
            left=[str(row) for row in range(h)],
            top=[str(column) for column in range(w)],
            scale=True,
        )


def draw_falloff(steps: Floats, across: Floats, down: Floats) -> Figure:
    """The same numbers as curves over the distance."""
    with drawing():
        figure = canvas(400, 300)
        axes = figure.add_axes((54 / 400, 46 / 300, 1 - 68 / 400, 1 - 60 / 300))
        axes.axhline(0, color=RULE, linewidth=1)
        axes.plot(across, color=SECOND, linewidth=1.5, label="along the same row")
        axes.plot(down, color=SECOND, linewidth=1.5, linestyle=(0, (2, 1.5)), label="down the same column")
        axes.plot(steps, color=ACCENT, linewidth=2.5, label="any two patches")
        axes.set(
            xlabel="steps apart, rows and columns added",
            ylabel="cosine similarity",
            ylim=(min(-0.4, float(steps.min()) - 0.05), 1.05),
        )
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.legend(loc="upper right")
        return figure


def draw_filters(found: Filters) -> Figure:
    """(n, P, P, C): grey is 0, each component scaled to its own largest weight."""
    shown = found.components[..., :3] if found.components.shape[-1] >= 3 else found.components[..., :1]
    peaks = np.abs(shown).max(axis=(1, 2, 3), keepdims=True)
    pixels = ((0.5 + 0.5 * shown / np.maximum(peaks, 1e-12)) * 255).round().astype(np.uint8)
    pixels = np.broadcast_to(pixels, (*pixels.shape[:3], 3))
    count, side = pixels.shape[:2]
    columns = min(ACROSS, -(-count // max(round(count / ACROSS), 1)))
    rows = -(-count // columns)
    tiles = np.zeros((rows * columns, side, side, 3), dtype=np.uint8)
    tiles[:count] = pixels
    times = max(round(2 * TILE / side), 1)
    sheet = mosaic(tiles.reshape(rows, columns, side, side, 3), max(round(0.1 * side * times), 1), times)
    step = (sheet.shape[1] + 1) // columns
    for empty in range(count, rows * columns):  # the last row need not be full
        row, column = divmod(empty, columns)
        sheet[row * step :, column * step :] = 0
    with drawing():
        return _sheet(sheet, sheet.shape[1] * TILE / (side * times), sheet.shape[0] * TILE / (side * times))


def _sheet(
    pixels: NDArray[np.uint8],
    width: float,
    height: float,
    *,
    left: Sequence[str] = (),
    top: Sequence[str] = (),
    corner: str = "",
    scale: bool = False,
) -> Figure:
    """A mosaic with names beside its rows and above its columns, and the colours of cosines on the right."""
    before = 14 + 6.6 * max(map(len, left)) if left else 1
    above, below, after = 24 if top else 1, 8 if scale else 1, 58 if scale else 1
    whole, tall = before + width + after, above + height + below
    figure = canvas(whole, tall)
    axes = figure.add_axes((before / whole, below / tall, width / whole, height / tall))
    figure.text((before - 4) / whole, 1 - (above - 6) / tall, corner, ha="right", va="bottom", fontsize=11, color=MUTED)
    # where the page is zoomed, pixels stay the squares that they are
    axes.imshow(pixels, interpolation="none", aspect="auto", extent=(0, 1, 1, 0))
    axes.grid(False)
    axes.spines[:].set_visible(False)
    for axis, names, room in (
        (axes.xaxis, top, width / (8 + 6.6 * max(map(len, top), default=1))),
        (axes.yaxis, left, height / 14),
    ):
        every = math.ceil(len(names) / room) or 1
        axis.set_ticks([(place + 0.5) / len(names) for place in range(0, len(names), every)], list(names[::every]))
    axes.tick_params(labeltop=True, labelbottom=False, pad=4)
    if scale:
        _cosines(figure.add_axes(((before + width + 16) / whole, below / tall, 12 / whole, height / tall)))
    return figure


def _cosines(axes: Axes) -> None:
    ramp = colormaps[COSINE](np.linspace(1, 0, 128))[:, None]
    axes.imshow(ramp, aspect="auto", extent=(0, 1, -1, 1), interpolation="none")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_xticks([])
    axes.yaxis.tick_right()
    axes.set_yticks([-1, 0, 1])
