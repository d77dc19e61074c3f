"""The folder that inspect writes: a page and PNGs. It never replaces a file that inspect has not made."""

import os
import re
from pathlib import Path

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from vitkit.atomic import replacing
from vitkit.errors import ConfigError
from vitkit.pages.svg import inline_svg, plot_style
from vitkit.text import few

PAGE = "inspect.html"
GENERATOR = "vitkit inspect"  # in the metadata of every file that is written
_METADATA = (f"Software\0{GENERATOR}".encode(), f'content="{GENERATOR}"'.encode())  # of a PNG, and of the page
_START = 1024  # bytes of a file within which the metadata stands
# Every name that may be written, in any case: on some disks Image-1.PNG is the same file
_NAMES = re.compile(
    rf"{re.escape(PAGE)}|((image|mask|queries|classes)-\d|attention-\d-(class|mean|\d+-\d+)|distance(-near|-far)?|filters|completions"
    r"|positions(-by-distance)?)\.png",
    re.IGNORECASE,
)


def refuse_foreign_files(folder: Path) -> None:
    """Raise a ConfigError if writing would replace files that inspect has not made; its own may be replaced."""
    if not os.path.lexists(folder):
        return
    try:
        foreign = [entry.name for entry in os.scandir(folder) if _NAMES.fullmatch(entry.name) and not _is_ours(entry)]
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {error.strerror}.", try_="--out DIR, another folder") from error
    if foreign:
        raise ConfigError(
            f"{folder} holds files that inspect has not made and would replace; nothing was written.",
            found=few(sorted(foreign)),
            try_="--out DIR, another folder, or a new one",
        )


def _is_ours(entry: os.DirEntry[str]) -> bool:
    if not entry.is_file():  # a folder of that name, a broken link, a pipe that would block
        return False
    with open(entry, "rb") as file:
        start = file.read(_START)
    return any(metadata in start for metadata in _METADATA)


class InspectFolder:
    """The folder that receives every figure and image as a PNG."""

    def __init__(self, folder: Path):
        refuse_foreign_files(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{folder} cannot be created: {error.strerror}.", try_="--out DIR, another folder"
            ) from error
        self.folder = folder
        self.files: list[str] = []

    def add_figure(self, figure: Figure, name: str, description: str) -> Markup:
        """Save a figure as a PNG and return it as inline SVG."""
        with plot_style(), replacing(self._path(name)) as temporary:
            # on white, at twice the resolution of CSS pixels
            figure.savefig(temporary, format="png", dpi=144, facecolor="white", metadata={"Software": GENERATOR})
        with plot_style():
            return inline_svg(figure, name, description)

    def add_image(self, pixels: NDArray[np.uint8], name: str) -> None:
        metadata = PngInfo()
        metadata.add_text("Software", GENERATOR)
        with replacing(self._path(name)) as temporary:
            Image.fromarray(pixels).save(temporary, "PNG", pnginfo=metadata)

    def _path(self, name: str) -> Path:
        assert _NAMES.fullmatch(f"{name}.png"), name  # else refuse_foreign_files would not protect it
        self.files.append(f"{name}.png")
        return self.folder / f"{name}.png"
