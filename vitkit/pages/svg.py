"""Matplotlib figures → inline SVG: its text is the page's text, its colours follow the light and the dark theme.

Class names come from folders, so they are untrusted: TeX in them is not interpreted, and characters that XML cannot
hold are replaced.
"""

import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from markupsafe import Markup
from matplotlib import style
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

INK, MUTED, RULE, ACCENT, SECOND = "#101010", "#707070", "#d0d0d0", "#2a6cb4", "#c4601c"
# figures are drawn in the colours above and shown in the page's own
_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    RULE: "var(--rule)",
    ACCENT: "var(--accent)",
    SECOND: "var(--second)",
}
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text: any script, in the browser's fonts
    "text.parse_math": False,  # a class may be called $x$
    "text.color": INK,
    "axes.grid.axis": "y",
    "grid.linewidth": 0.8,
    "legend.handlelength": 1.4,
    "lines.solid_capstyle": "round",
    **dict.fromkeys(("font.size", "axes.labelsize"), 12),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 11),
    **dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color"), MUTED),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), RULE),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.spines.left", "legend.frameon"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size", "legend.borderpad"), 0),
    **dict.fromkeys(("xtick.major.pad", "ytick.major.pad"), 6),
    **dict.fromkeys(("axes.facecolor", "figure.facecolor"), "none"),
    "axes.formatter.useoffset": False,
}
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # no dates: the same run, the same file
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@contextmanager
def plot_style() -> Iterator[None]:
    """Set the plot style of this project, whatever the user's own matplotlib settings are."""
    with style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the browser has the fonts
        yield


def canvas(width: float, height: float) -> Figure:
    """Return an empty figure, measured in CSS pixels: a font of 12 is 12 px high at the figure's own width."""
    return Figure(figsize=(width / 72, height / 72), dpi=72)


def plot_text(text: str) -> str:
    """Return the text on one line, without characters that XML cannot hold."""
    return _NOT_XML.sub("\ufffd", " ".join(text.split()))


def inline_svg(figure: Figure, name: str, description: str) -> Markup:
    """Return the figure as an <svg> element; `name` makes its ids unique on the page."""
    file = io.BytesIO()
    with style.context({"svg.hashsalt": name}):
        FigureCanvasSVG(figure).print_svg(file, metadata=_NO_METADATA)
    root = ET.fromstring(file.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith("}defs") and any(inner.tag.endswith("}style") for inner in child):
                parent.remove(child)  # its rules would reach the whole page; style.css has them
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {key.rpartition("}")[2]: _attribute(key, value, name) for key, value in element.items()}
    width = root.attrib.pop("width").removesuffix("pt")
    del root.attrib["height"], root.attrib["version"]
    root.attrib |= {"role": "img", "aria-label": plot_text(description), "style": f"width: {float(width):g}px"}
    return Markup(ET.tostring(root, encoding="unicode", short_empty_elements=False))


def _attribute(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key.endswith("href"):
        return value.replace("#", f"#{name}-", 1) if value.startswith("#") else value
    if key == "clip-path":
        return value.replace("url(#", f"url(#{name}-")
    if key == "style":
        for drawn, shown in _VARIABLES.items():
            value = value.replace(drawn, shown)
    return value
