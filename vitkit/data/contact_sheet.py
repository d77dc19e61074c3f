"""A contact sheet: the model's input, class by class, as one image."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

from vitkit.data.decode import decode
from vitkit.data.fonts import Fonts, package_with
from vitkit.data.mask_sheet import mask_sheet
from vitkit.data.preprocessing import Preprocessing, Resize
from vitkit.data.sheet_style import EMPTY, FAINT, GAP, INK, LINE, MARGIN, PAPER
from vitkit.data.sources.dataset import Data, DataError, Split
from vitkit.data.transforms import EvalTransform
from vitkit.errors import ConfigError, DecodeError
from vitkit.regular_file import open_regular
from vitkit.text import printable

ROWS, COLUMNS = 12, 8
ENDINGS = (".png", ".jpg", ".jpeg")
MARK = "vitkit check"  # in the metadata of every sheet, so that no other file is ever overwritten
TILE = 96


def contact_sheet(data: Data, image: tuple[int, int], resize: Resize, channels: int) -> Image.Image:
    """Draw images of each class as the model will see them, after the evaluation transform's crop or squash.

    Of segmentation data, images are drawn as they are, under their masks.
    """
    if data.task == "segment":
        return mask_sheet(data, channels)
    transform = EvalTransform(image=image, preprocessing=Preprocessing(resize=resize))
    split = data.splits[next(iter(data.splits))]
    rows, fonts = [], Fonts([data.name, *data.classes[:ROWS]])
    for name, members in _classes(data, split, fonts):
        chosen = members[np.linspace(0, len(members) - 1, min(COLUMNS, len(members))).astype(int)]
        views = [_view(split, int(index), transform, channels) for index in chosen]
        rows.append((f"{name}  ({len(members):,})", [view for view in views if view is not None]))
    shown = f"the first {ROWS} of {len(data.classes)} classes, " if len(data.classes) > ROWS else ""
    return _draw(f"{data.name}: the model's input", f"{shown}{transform.describe()[0]}", rows, fonts)


def names_without_font(data: Data) -> str:
    """Say which class names on the sheet no font of this system can draw, and what to do; "" if there are none."""
    shown = data.classes[:ROWS]
    fonts = Fonts(shown)
    if not fonts.absent:
        return ""
    names = [
        f"class {index + 1} is {printable(name)}" for index, name in enumerate(shown) if set(name) & set(fonts.absent)
    ]
    return (
        f"No font on this machine has every letter of some names, so the sheet numbers them: {', '.join(names)}. "
        f"On Debian and Ubuntu, `apt install {package_with(fonts.absent)}` adds one."
    )


def _classes(data: Data, split: Split, fonts: Fonts) -> list[tuple[str, np.ndarray]]:
    if not data.classes:
        everything = np.arange(len(split))
        return [("unlabelled", members) for members in np.array_split(everything, ROWS) if len(members)]
    rows = [split.images_of(index) for index in range(min(len(data.classes), ROWS))]
    # a name that no font can draw has its place in the list of classes instead
    names = [
        name if fonts.can_draw(name) else f"class {index + 1}: {name}" for index, name in enumerate(data.classes[:ROWS])
    ]
    return [(name, members) for name, members in zip(names, rows, strict=True) if len(members)]


def _view(split: Split, index: int, transform: EvalTransform, channels: int) -> np.ndarray | None:
    try:
        resized = transform.resize_only(decode(split.read(index), channels=channels))
    except (DecodeError, DataError):
        return None
    return resized.round().clamp(0, 255).byte().permute(1, 2, 0).numpy()


def save_sheet(sheet: Image.Image, path: Path) -> None:
    """Save the sheet to a new file, or over an earlier sheet."""
    check_sheet_path(path)
    metadata = PngInfo()
    metadata.add_text("Software", MARK)
    sheet.save(path, pnginfo=metadata, comment=MARK)  # pnginfo for PNG, comment for JPEG


def check_sheet_path(path: Path) -> None:
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(f"{path} is no name for a contact sheet.", try_="a name that ends in .png or .jpg")
    if path.exists() and not _is_sheet(path):
        raise ConfigError(
            f"{path} exists and is not a contact sheet of vitkit check; it stays as it is.",
            try_="--sheet FILE with another name",
        )


def _is_sheet(path: Path) -> bool:
    try:
        with open_regular(path) as file, Image.open(file) as image:
            return MARK in (image.info.get("Software"), bytes(image.info.get("comment", b"")).decode("latin-1"))
    except Exception:  # not an image, or one that Pillow refuses
        return False


def _draw(title: str, subtitle: str, rows: Sequence[tuple[str, Sequence[np.ndarray]]], fonts: Fonts) -> Image.Image:
    """Draw rows of (class name, images (height, width, C) uint8)."""
    columns = max((len(views) for _, views in rows), default=1)
    width = max(2 * MARGIN + columns * (TILE + GAP), 520)
    height = 2 * MARGIN + 48 + len(rows) * (TILE + LINE + GAP)
    sheet = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(sheet)
    fonts.draw(pen, (MARGIN, MARGIN), fonts.shorten(title, width - 2 * MARGIN, 18), INK, 18)
    fonts.draw(pen, (MARGIN, MARGIN + 26), fonts.shorten(subtitle, width - 2 * MARGIN, 12), FAINT, 12)
    top = MARGIN + 52
    for name, views in rows:
        fonts.draw(pen, (MARGIN, top), fonts.shorten(name, width - 2 * MARGIN, 12), INK, 12)
        for column, pixels in enumerate(views):
            sheet.paste(_tile(pixels), (MARGIN + column * (TILE + GAP), top + LINE))
        top += TILE + LINE + GAP
    return sheet


def _tile(pixels: np.ndarray) -> Image.Image:
    """Return a tile of any number of channels: grey and RGB as they are, otherwise the first three bands."""
    shown = pixels[:, :, 0] if pixels.shape[2] < 3 else pixels[:, :, :3]
    image = Image.fromarray(np.ascontiguousarray(shown)).convert("RGB")
    image.thumbnail((TILE, TILE))
    scale = min(TILE / image.width, TILE / image.height)
    size = max(round(image.width * scale), 1), max(round(image.height * scale), 1)
    tile = Image.new("RGB", (TILE, TILE), EMPTY)
    tile.paste(
        image.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BICUBIC),
        ((TILE - size[0]) // 2, (TILE - size[1]) // 2),
    )
    return tile
