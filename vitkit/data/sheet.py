"""A contact sheet: what the model will see, class by class, as one picture to look at."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from vitkit.errors import ConfigError

ENDINGS = (".png", ".jpg", ".jpeg")
MARK = "vitkit check"  # in every sheet that is kept, so that nothing else is ever replaced by one
TILE, GAP, MARGIN, LINE = 96, 6, 16, 18
# of many scripts, under the names that Linux, macOS and Windows have them
WIDE_FONTS = (
    "NotoSansCJK-Regular.ttc",
    "NotoSansCJKkr-Regular.otf",
    "NanumGothic.ttf",
    "AppleSDGothicNeo.ttc",
    "Arial Unicode.ttf",
    "malgun.ttf",
    "msyh.ttc",
    "DejaVuSans.ttf",
)
INK, PAPER, FAINT = (24, 28, 36), (252, 252, 250), (120, 126, 136)


def save_sheet(sheet: Image.Image, path: Path) -> None:
    """In a new place, or in that of an earlier one."""
    refuse_others(path)
    told = PngInfo()
    told.add_text("Software", MARK)
    sheet.save(path, pnginfo=told, comment=MARK)  # the first is a PNG's, the second a JPEG's


def refuse_others(path: Path) -> None:
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(f"{path} is no name for a contact sheet.", try_="one that ends in .png or .jpg")
    if path.exists() and not _ours(path):
        raise ConfigError(
            f"{path} is there already, and not a sheet of check's; it stays as it is.",
            try_="--sheet FILE, another name",
        )


def _ours(path: Path) -> bool:
    try:
        with Image.open(path) as picture:
            return MARK in (picture.info.get("Software"), bytes(picture.info.get("comment", b"")).decode("latin-1"))
    except Exception:  # no picture, or one that Pillow refuses
        return False


def draw_sheet(title: str, subtitle: str, rows: Sequence[tuple[str, Sequence[np.ndarray]]]) -> Image.Image:
    """rows of (name, pictures (height, width, C) uint8), each row one class."""
    columns = max((len(pictures) for _, pictures in rows), default=1)
    width = max(2 * MARGIN + columns * (TILE + GAP), 520)
    height = 2 * MARGIN + 48 + len(rows) * (TILE + LINE + GAP)
    sheet = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((MARGIN, MARGIN), title, INK, _font(18, title))
    pen.text((MARGIN, MARGIN + 26), _shorten(pen, subtitle, width - 2 * MARGIN), FAINT, _font(12, subtitle))
    top = MARGIN + 52
    for name, pictures in rows:
        pen.text((MARGIN, top), _shorten(pen, name, width - 2 * MARGIN), INK, _font(12, name))
        for column, pixels in enumerate(pictures):
            sheet.paste(_tile(pixels), (MARGIN + column * (TILE + GAP), top + LINE))
        top += TILE + LINE + GAP
    return sheet


def _tile(pixels: np.ndarray) -> Image.Image:
    """Any number of channels: grey and RGB as they are, of more bands the first three."""
    shown = pixels[:, :, 0] if pixels.shape[2] < 3 else pixels[:, :, :3]
    picture = Image.fromarray(np.ascontiguousarray(shown)).convert("RGB")
    picture.thumbnail((TILE, TILE))
    scale = min(TILE / picture.width, TILE / picture.height)
    size = max(round(picture.width * scale), 1), max(round(picture.height * scale), 1)
    tile = Image.new("RGB", (TILE, TILE), (236, 236, 232))
    tile.paste(
        picture.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BICUBIC),
        ((TILE - size[0]) // 2, (TILE - size[1]) // 2),
    )
    return tile


def _font(size: int, text: str) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    """Pillow's own font; where a name is written in another script, one of the system's that has it."""
    if any(ord(letter) > 0x2FF and not letter.isspace() and letter not in "…–—" for letter in text):
        for name in WIDE_FONTS:
            with contextlib.suppress(OSError):
                return ImageFont.truetype(name, size)
    return ImageFont.load_default(size)


def _shorten(pen: ImageDraw.ImageDraw, text: str, width: int) -> str:
    font = _font(12, text)
    if pen.textlength(text, font) <= width:
        return text
    while text and pen.textlength(text + "…", font) > width:
        text = text[:-1]
    return text + "…"
