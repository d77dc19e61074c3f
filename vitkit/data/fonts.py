"""Fonts for text in any script: Pillow's own, matplotlib's DejaVu Sans, then the fonts that the system has.

No font has every character. A line of text is drawn in runs, each in the first font that has its characters; what no
font has is written as [U+AC00] and the like, never as an empty box.
"""

import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from PIL import ImageDraw, ImageFont

ENDINGS = (".ttf", ".ttc", ".otf", ".otc")
NONCHARACTER = "\U0010ffff"  # in no font: it is drawn as the box of a missing glyph
PROBED_SIZE = 16
# parts of file names of fonts with many scripts, in the order to try them; other fonts follow
PREFERRED = (
    "NotoSansCJK NotoSansKR NotoSansJP NotoSansSC NanumGothic AppleSDGothicNeo PingFang Hiragino malgun msyh meiryo "
    "YuGoth wqy DroidSansFallback NotoSans-Regular"
).split()
OTHER_STYLES = ("Bold", "Italic", "Oblique", "Light", "Thin", "Black", "Condensed", "Mono", "Serif")
UNREADABLE = ("LastResort", "AdobeBlank")  # they have a glyph for every character, and it says nothing


@dataclass
class Face:
    """A font file, or Pillow's own font, in any size."""

    path: Path | None = None
    _sizes: dict[int, ImageFont.FreeTypeFont] = field(default_factory=dict, repr=False)
    _known: dict[str, bool] = field(default_factory=dict, repr=False)
    _probe: ImageFont.FreeTypeFont | None = field(default=None, repr=False)

    def at(self, size: int) -> ImageFont.FreeTypeFont:
        if size not in self._sizes:
            self._sizes[size] = self._open(size)
        return self._sizes[size]

    def _open(self, size: int, layout: ImageFont.Layout | None = None) -> ImageFont.FreeTypeFont:
        if self.path is not None:
            return ImageFont.truetype(str(self.path), size, layout_engine=layout)
        font = ImageFont.load_default(size)
        if not isinstance(font, ImageFont.FreeTypeFont):
            raise OSError("Pillow was built without FreeType")
        return font

    def has(self, text: str) -> bool:
        """Return whether the font has a glyph for every character; a font that cannot be opened has none."""
        for character in text:
            if character not in self._known:
                self._known[character] = self._has_glyph(character)
        return all(self._known[character] for character in text)

    def _has_glyph(self, character: str) -> bool:
        if _is_control(character):
            return False
        try:
            # one glyph for one character: with shaping, a missing vowel sign would be drawn on a dotted circle
            self._probe = self._probe or self._open(PROBED_SIZE, ImageFont.Layout.BASIC)
            drawn, box = (self._probe.getmask(one, "L") for one in (character, NONCHARACTER))
        except OSError:  # a damaged font, or one of bitmaps in another size
            return False
        return (drawn.size, bytes(drawn)) != (box.size, bytes(box))


@dataclass(frozen=True)
class TextRun:
    """Consecutive characters that one font can draw."""

    text: str
    face: Face


class Fonts:
    """The fonts for some texts: of those that the system has, only the ones that have a character of them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.faces = [Face(), Face(_dejavu())]
        needed = {character for text in texts for character in _visible(text)}
        absent = {character for character in needed if not self._has(character) and not _is_control(character)}
        for path in font_files() if absent else ():
            face = Face(path)
            if covered := {character for character in absent if face.has(character)}:
                self.faces.append(face)
                absent -= covered
            if not absent:
                break
        self.absent = "".join(sorted(absent))  # the characters that no font has

    def can_draw(self, text: str) -> bool:
        return all(self._has(character) for character in _visible(text))

    def runs(self, text: str) -> list[TextRun]:
        """Divide a text into runs; a character that no font has becomes its code, such as [U+AC00]."""
        text = _visible(text)
        for face in self.faces:
            if face.has(text):  # in one piece, as joined scripts need it
                return [TextRun(text, face)]
        found: list[TextRun] = []
        for character in text:
            shown = character if self._has(character) else f"[U+{ord(character):04X}]"
            if found and found[-1].face.has(shown):
                found[-1] = TextRun(found[-1].text + shown, found[-1].face)
            else:
                found.append(TextRun(shown, next(face for face in self.faces if face.has(shown))))
        return found

    def width(self, text: str, size: int) -> float:
        return sum(run.face.at(size).getlength(run.text) for run in self.runs(text))

    def draw(
        self, pen: ImageDraw.ImageDraw, position: tuple[int, int], text: str, fill: tuple[int, int, int], size: int
    ) -> None:
        """Draw a line of text with its upper left corner at the position; all runs share a baseline."""
        left: float = position[0]
        for run in self.runs(text):
            font = run.face.at(size)
            pen.text((left, position[1] + size), run.text, fill, font, anchor="ls")
            left += font.getlength(run.text)

    def shorten(self, text: str, width: float, size: int) -> str:
        """Cut a text to a width, with an ellipsis where it was cut."""
        if self.width(text, size) <= width:
            return text
        while text and self.width(text + "…", size) > width:
            text = text[:-1]
        return text + "…"

    def _has(self, character: str) -> bool:
        return any(face.has(character) for face in self.faces)


def package_with(characters: str) -> str:
    """Return the package of Debian and Ubuntu that has a font for such characters."""
    names = " ".join(unicodedata.name(character, "") for character in characters)
    if any(script in names for script in ("CJK", "HANGUL", "HIRAGANA", "KATAKANA")):
        return "fonts-noto-cjk"
    # not Noto's own emoji, which are bitmaps of another size
    return "fonts-symbola" if all(unicodedata.category(one) == "So" for one in characters) else "fonts-noto-core"


def font_files() -> list[Path]:
    """Return the font files of this system, those first that are likely to help."""
    files = {path for folder in _font_folders() for path in _files_below(folder)}
    return sorted((path for path in files if not any(name in path.name for name in UNREADABLE)), key=_preference)


def _is_control(character: str) -> bool:
    """Return whether it is a control character, or half of a surrogate pair, as in a file name that is not text."""
    return unicodedata.category(character) in ("Cc", "Cs")


def _visible(text: str) -> str:
    """Leave out characters that only join or vary their neighbours (zero-width joiners …); all spaces become plain."""
    kept = (
        character
        for character in text
        if unicodedata.category(character) != "Cf" and not "\ufe00" <= character <= "\ufe0f"
    )
    return "".join(" " if unicodedata.category(character) == "Zs" else character for character in kept)


def _dejavu() -> Path:
    import matplotlib

    return Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")


def _font_folders() -> list[Path]:
    home = Path.home()
    if sys.platform == "win32":
        return [
            Path(os.environ.get("WINDIR", "C:/Windows"), "Fonts"),
            Path(os.environ.get("LOCALAPPDATA", home / "AppData/Local"), "Microsoft/Windows/Fonts"),
        ]
    if sys.platform == "darwin":
        return [Path("/System/Library/Fonts"), Path("/Library/Fonts"), home / "Library/Fonts"]
    shared = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    own = os.environ.get("XDG_DATA_HOME") or home / ".local/share"
    return [*(Path(folder, "fonts") for folder in shared.split(":")), Path(own, "fonts"), home / ".fonts"]


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names if name.lower().endswith(ENDINGS))


def _preference(path: Path) -> tuple[int, int, str]:
    name = path.name.lower()
    rank = next((rank for rank, part in enumerate(PREFERRED) if part.lower() in name), len(PREFERRED))
    return rank, sum(style in path.name for style in OTHER_STYLES), str(path)
