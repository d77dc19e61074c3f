"""Probe every layer of a model on its own: where on its way up it knows most about the classes.

The best layer is the one that is best on the dev images, so that the score of its test images is not chosen by them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Literal

from matplotlib.figure import Figure

from vitkit.atomic import replacing
from vitkit.compute.features import Features
from vitkit.data.sources.dataset import Data
from vitkit.errors import ConfigError
from vitkit.evaluate.probe import LayerScore, Linear, Method, ProbeFeatures, ProbeResult, probe
from vitkit.model.build import Model
from vitkit.pages.svg import ACCENT, MUTED, canvas, plot_style

WIDTH, HEIGHT = 560, 320  # of the curve, in CSS pixels
TICKS = 12  # on the axis of depth, at most


def choose_layers(model: Model, layers: Literal["all"] | Sequence[int] | None, method: Method) -> tuple[str, ...]:
    """Return the captures of the layers that were asked for; (): none, the representation is probed."""
    if layers is None:
        return ()
    if not isinstance(method, Linear):
        raise ConfigError(
            "--layer compares layers by their dev images, which the linear probe alone has", try_="--method linear"
        )
    known = model.layers
    if layers == "all":
        return known
    for number in layers:
        if not isinstance(number, int) or not 0 <= number < len(known):
            raise ConfigError(
                f"there is no layer {number}", layers=f"all, or 0 to {len(known) - 1}, {len(known)} in all"
            )
    return tuple(known[int(number)] for number in dict.fromkeys(layers))


def probe_layers(features: ProbeFeatures, data: Data, method: Method, layers: Sequence[str]) -> ProbeResult:
    """Probe each layer of features that stand side by side; return the best one's result, with the scores of all."""
    scores: list[LayerScore] = []
    best: ProbeResult | None = None
    for layer, own in zip(layers, _split(features, len(layers)), strict=True):
        result = replace(probe(own, data, method), layer=layer)
        assert result.top1 is not None
        scores.append(LayerScore(layer=layer, top1=result.top1, dev=_dev(result), l2=result.l2))
        if best is None or _dev(result) > _dev(best):
            best = result
    assert best is not None
    return replace(best, layers=tuple(scores))


def _dev(result: ProbeResult) -> float:
    """Return the accuracy on the dev images of the regularisation that was chosen by them."""
    return max(trial.accuracy for trial in result.tried)


def _split(features: ProbeFeatures, layers: int) -> Iterator[ProbeFeatures]:
    """Yield the features of each layer, where its width is not that of the others, too."""
    widths = features.widths or (features.fit.values.shape[1] // layers,) * layers
    start = 0
    for width in widths:
        own = slice(start, start + width)
        dev = None if features.dev is None else _columns(features.dev, own)
        yield replace(features, fit=_columns(features.fit, own), dev=dev, test=_columns(features.test, own))
        start += width


def _columns(features: Features, columns: slice) -> Features:
    return replace(features, values=features.values[:, columns].copy())


def save_curve(result: ProbeResult, path: Path) -> Path:
    """Draw top-1 over depth, as Figure 2 of Chen et al. (2020), and write it as PNG or SVG by the suffix."""
    with plot_style(), replacing(path, ConfigError) as temporary:
        draw_curve(result).savefig(temporary, format=path.suffix[1:], dpi=144, facecolor="white")
    return path


def draw_curve(result: ProbeResult) -> Figure:
    figure = canvas(WIDTH, HEIGHT)
    axes = figure.subplots()
    depth = range(len(result.layers))
    values = [100 * score.top1.value for score in result.layers]
    low, high = ([100 * getattr(score.top1, end) for score in result.layers] for end in ("low", "high"))
    axes.fill_between(depth, low, high, color=ACCENT, alpha=0.15, linewidth=0)
    axes.plot(depth, values, color=ACCENT, marker="o", markersize=4)
    best = [score.layer for score in result.layers].index(result.layer or "")
    axes.axvline(best, color=MUTED, linewidth=1, linestyle="--")
    axes.set_title(f"best on the dev images: {result.layer}, {values[best]:.1f} %", fontsize=12, color=MUTED)
    shown = depth[:: ceil(len(depth) / TICKS)]
    kind = result.layers[0].layer.rstrip("0123456789")
    axes.set_xticks(shown, [result.layers[index].layer.removeprefix(kind) for index in shown])
    axes.set_xlabel(f"{kind}, from the bottom")
    axes.set_ylabel("top-1 of a linear probe, %")
    axes.margins(y=0.2)
    figure.tight_layout()
    return figure
