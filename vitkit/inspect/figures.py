"""Matplotlib figures of the analyses, for inline SVG and PNG files.

Shapes: L attention layers, H heads, h x w patch grid, n components, P side of a filter, C channels.
"""

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
from vitkit.inspect.heatmaps import COSINE, Floats, apply_colormap, mosaic, scale_to_unit
from vitkit.pages.svg import ACCENT, MUTED, RULE, SECOND, canvas, plot_style

TILE = 64  # CSS pixels that a head's map takes along its longer side
WIDEST = 820  # CSS pixels next to an image
ACROSS = 14  # filters in a row


def draw_attention(maps: Floats, labels: Sequence[str], heads: Sequence[int]) -> Figure:
    """Draw attention maps (L, H, h, w), a column for each layer and a row for each head, each on its own scale."""
    h, w = maps.shape[2:]
    tile = min(TILE, (WIDEST - 60) / len(labels) * 0.94)
    scale = tile / max(h, w)  # CSS pixels of a patch
    times = max(round(2 * scale), 1)  # its pixels in the figure: sharp on a high-resolution screen
    tiles = np.array([[apply_colormap(scale_to_unit(one)) for one in row] for row in maps.swapaxes(0, 1)])
    sheet = mosaic(tiles, max(round(0.06 * tile * times / scale), 1), times)
    with plot_style():
        return _sheet(
            sheet,
            sheet.shape[1] * scale / times,
            sheet.shape[0] * scale / times,
            left=[f"head {head}" for head in heads],
            top=[label.replace(" ", "\n") for label in labels],  # 0 and, below it, columns: a tile's width is enough
            corner="layer",
        )


def draw_distance(distance: AttentionDistance) -> Figure:
    """Draw Fig. 7 right: a dot for each head, a line through the means of the layers."""
    with plot_style():
        figure = canvas(460, 340)
        axes = figure.add_axes((58 / 460, 48 / 340, 1 - 66 / 460, 1 - 84 / 340))
        x = np.arange(len(distance.attention_layers))
        for head, y in enumerate(distance.per_head.T):
            axes.scatter(
                x,
                y,
                s=34,
                color=ACCENT,
                alpha=0.75,
                linewidth=0,
                zorder=3,
                label=None if head else "one head",
            )
        axes.plot(x, distance.per_layer, color=SECOND, linewidth=2, label="mean of heads", zorder=2)
        axes.axhline(distance.uniform, color=MUTED, linewidth=1, linestyle=(0, (4, 3)), label="uniform attention")
        layers = distance.attention_layers
        per_block = 2 if layers[0].axis else 1
        axes.set(
            xlabel=f"layer: {layers[0].axis}, then {layers[1].axis}" if per_block == 2 else "layer",
            ylabel="attention distance, pixels",
            ylim=(0, 1.08 * max(float(distance.per_head.max()), distance.uniform, 1)),
        )
        every = per_block * math.ceil(len(x) / per_block / 12)
        axes.set_xticks(x[::every], [layer.number for layer in layers[::every]])
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.02), ncols=3, columnspacing=1.4)
        return figure


def draw_profile(shares: Floats, mean: float, stride: int, most: float, furthest: int) -> Figure:
    """Draw one head's attention weights by distance, and their mean distance as a line."""
    with plot_style():
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
    """Draw Fig. 7 centre: for each patch, a small map of its position embedding's similarity to all others."""
    h, w = similarity.shape[:2]
    side = 520 / max(h, w)
    times = max(round(2 * side / max(h, w)), 1)
    sheet = mosaic(apply_colormap((similarity + 1) / 2, COSINE), max(round(0.08 * times * max(h, w)), 1), times)
    with plot_style():
        return _sheet(
            sheet,
            side * w,
            side * h,
            left=[str(row) for row in range(h)],
            top=[str(column) for column in range(w)],
            scale=True,
        )


def draw_similarity_by_distance(steps: Floats, across: Floats, down: Floats) -> Figure:
    """Draw the cosine similarity of position embeddings as curves over the distance."""
    with plot_style():
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


def draw_filters(filters: Filters) -> Figure:
    """Draw the components: grey is 0, each is scaled to its own largest weight."""
    components = filters.components
    shown = components[..., :3] if components.shape[-1] >= 3 else components[..., :1]
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
    with plot_style():
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
    """Draw a mosaic with labels at its rows and columns, and the colour bar of cosines on the right."""
    before = 14 + 6.6 * max(map(len, left)) if left else 1
    lines = [label.split("\n") for label in top]
    above, below, after = 10 + 14 * max(map(len, lines)) if top else 1, 8 if scale else 1, 58 if scale else 1
    full_width, full_height = before + width + after, above + height + below
    figure = canvas(full_width, full_height)
    axes = figure.add_axes((before / full_width, below / full_height, width / full_width, height / full_height))
    x, y = (before - 4) / full_width, 1 - (above - 6) / full_height
    figure.text(x, y, corner, ha="right", va="bottom", fontsize=11, color=MUTED)
    # no interpolation: where the page is zoomed, pixels stay squares
    axes.imshow(pixels, interpolation="none", aspect="auto", extent=(0, 1, 1, 0))
    axes.grid(False)
    axes.spines[:].set_visible(False)
    for axis, labels, room in (
        (axes.xaxis, top, width / (8 + 6.6 * max((len(line) for label in lines for line in label), default=1))),
        (axes.yaxis, left, height / 14),
    ):
        every = math.ceil(len(labels) / room) or 1
        ticks = [(index + 0.5) / len(labels) for index in range(0, len(labels), every)]
        axis.set_ticks(ticks, list(labels[::every]))
    axes.tick_params(labeltop=True, labelbottom=False, pad=4)
    if scale:
        left_edge = (before + width + 16) / full_width
        _colour_bar(figure.add_axes((left_edge, below / full_height, 12 / full_width, height / full_height)))
    return figure


def _colour_bar(axes: Axes) -> None:
    ramp = colormaps[COSINE](np.linspace(1, 0, 128))[:, None]
    axes.imshow(ramp, aspect="auto", extent=(0, 1, -1, 1), interpolation="none")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_xticks([])
    axes.yaxis.tick_right()
    axes.set_yticks([-1, 0, 1])
