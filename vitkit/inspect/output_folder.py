"""The folder that a look leaves behind: a page and PNGs, in the place of nothing that somebody else has made."""

from __future__ import annotations

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
from vitkit.pages.svg import drawing, inline
from vitkit.text import few

PAGE = "inspect.html"
MARK = "vitkit inspect"  # in every file that is written, so that none of another's making is ever replaced
_MARKED = (f"Software\0{MARK}".encode(), f'content="{MARK}"'.encode())  # as a PNG has it, and as the page does
_START = 1024  # bytes of a file within which the mark stands
# Any that is ever written. In any case: on some disks Picture-1.PNG is the same file
_NAMES = re.compile(
    rf"{re.escape(PAGE)}|(picture-\d|attention-\d-(class|mean|\d+-\d+)|distance(-near|-far)?|filters"
    r"|positions(-by-distance)?)\.png",
    re.IGNORECASE,
)


def refuse_others(folder: Path) -> None:
    """A folder may hold what an earlier look left; anything else in the place of a figure is not ours to replace."""
    if not os.path.lexists(folder):
        return
    try:
        taken = [entry.name for entry in os.scandir(folder) if _NAMES.fullmatch(entry.name) and not _ours(entry)]
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {error.strerror}.", try_="--out DIR, another folder") from error
    if taken:
        raise ConfigError(
            f"{folder} holds files that inspect has not made and would replace; nothing was written.",
            found=few(sorted(taken)),
            try_="--out DIR, another folder, or a new one",
        )


def _ours(entry: os.DirEntry[str]) -> bool:
    if not entry.is_file():  # a folder of that name, a link to nothing, a pipe that would be waited for
        return False
    with open(entry, "rb") as file:
        start = file.read(_START)
    return any(mark in start for mark in _MARKED)


class Album:
    """The folder that figures go into; each is kept as a PNG and comes back as what the page shows."""

    def __init__(self, folder: Path):
        refuse_others(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{folder} cannot be made: {error.strerror}.", try_="--out DIR, another folder"
            ) from error
        self.folder = folder
        self.files: list[str] = []

    def figure(self, figure: Figure, name: str, description: str) -> Markup:
        _save(figure, self._path(name))
        with drawing():
            return inline(figure, name, description)

    def picture(self, pixels: NDArray[np.uint8], name: str) -> None:
        told = PngInfo()
        told.add_text("Software", MARK)
        with replacing(self._path(name)) as temporary:
            Image.fromarray(pixels).save(temporary, "PNG", pnginfo=told)

    def _path(self, name: str) -> Path:
        assert _NAMES.fullmatch(f"{name}.png"), name  # else a file of that name would be replaced unasked
        self.files.append(f"{name}.png")
        return self.folder / f"{name}.png"


def _save(figure: Figure, path: Path) -> None:
    """On white, twice as fine as a screen's pixels."""
    with drawing(), replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=144, facecolor="white", metadata={"Software": MARK})
