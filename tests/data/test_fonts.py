"""Text is drawn in a font that has its characters, and never as the boxes of missing glyphs."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from fontTools.ttLib import TTFont
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont

from vitkit.cli.main import main
from vitkit.data import fonts
from vitkit.data.contact_sheet import contact_sheet, names_without_font
from vitkit.data.fonts import Fonts, font_files, package_with
from vitkit.data.sources.open import open_data

DEJAVU = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
DEJAVUS = TTFont(DEJAVU, lazy=True).getBestCmap()
PILLOWS = TTFont(io.BytesIO(ImageFont.load_default(16).font_bytes), lazy=True).getBestCmap()


def make_font(path: Path, characters: str) -> Path:
    """Write a font whose glyphs are triangles, each of another width; a missing glyph is an empty square."""
    names = [".notdef", *(f"glyph{index}" for index in range(len(characters)))]
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap({ord(character): name for character, name in zip(characters, names[1:], strict=True)})
    glyphs, metrics = {}, {}
    for index, name in enumerate(names):
        pen = TTGlyphPen(None)
        width = 400 + 40 * index
        for point, (x, y) in enumerate(
            [(0, 0), (0, 700), (width, 700), (width, 0)] if index == 0 else [(0, 0), (0, 800), (width, 0)]
        ):
            (pen.lineTo if point else pen.moveTo)((x, y))
        pen.closePath()
        glyphs[name], metrics[name] = pen.glyph(), (width + 50, 0)
    builder.setupGlyf(glyphs)
    builder.setupHorizontalMetrics(metrics)
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Test", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    path.parent.mkdir(parents=True, exist_ok=True)
    builder.save(path)
    return path


@pytest.fixture
def no_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "font_files", list)


@pytest.fixture
def hangul(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = make_font(tmp_path / "fonts" / "Hangul.ttf", "고양이")
    broken = tmp_path / "fonts" / "Broken.ttf"
    broken.write_bytes(b"no font")
    monkeypatch.setattr(fonts, "font_files", lambda: [broken, path])
    return path


def test_a_font_of_the_system_draws_what_the_packages_fonts_lack(hangul: Path):
    chosen = Fonts(["고양이 (6)"])
    assert chosen.absent == ""
    assert [(run.text, run.face.path) for run in chosen.runs("고양이 (6)")] == [("고양이", hangul), (" (6)", None)]
    image = Image.new("L", (200, 40), 255)
    chosen.draw(ImageDraw.Draw(image), (10, 5), "고양이", 0, 20)
    reference = Image.new("L", (200, 40), 255)
    ImageDraw.Draw(reference).text((10, 25), "고양이", 0, ImageFont.truetype(str(hangul), 20), anchor="ls")
    assert np.array_equal(np.asarray(image), np.asarray(reference))
    assert (np.asarray(image) < 255).any()


def test_without_a_font_the_codes_are_written(no_fonts: None):
    chosen = Fonts(["고양이"])
    assert set(chosen.absent) == set("고양이")
    assert not chosen.can_draw("고양이")
    assert "".join(run.text for run in chosen.runs("a 고양")) == "a [U+ACE0][U+C591]"


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(codec=None), max_size=12))
def test_every_character_that_is_drawn_has_a_glyph(text: str):
    """The character map of the font file, as fontTools reads it, has every character of a run in that font."""
    own = Fonts([])  # the two fonts of the packages: Pillow's, DejaVu Sans
    maps = {None: PILLOWS, DEJAVU: DEJAVUS}
    for run in own.runs(text):
        assert set(map(ord, run.text)) <= set(maps[run.face.path])
        run.face.at(12).getlength(run.text)


def test_accents_greek_cyrillic_and_arabic_need_no_font_of_the_system(no_fonts: None):
    for text in ("Brüssel, Škoda", "Ωμέγα", "Кот", "خيول عربية", "naïve – “café” …"):
        chosen = Fonts([text])
        assert chosen.absent == ""
        assert "".join(run.text for run in chosen.runs(text)) == text


def test_joiners_are_left_out_and_control_characters_written_as_codes(no_fonts: None):
    chosen = Fonts(["a\u200db\ufe0f", "bell\x07", "half \udcff"])
    assert [run.text for run in chosen.runs("a\u200db\ufe0f")] == ["ab"]
    assert "".join(run.text for run in chosen.runs("bell\x07 \udcff")) == "bell[U+0007] [U+DCFF]"
    assert chosen.absent == ""  # no font would help
    assert [run.text for run in Fonts(["a\u00a0b\u3000"]).runs("a\u00a0b\u3000")] == ["a b "]


def test_text_is_cut_to_a_width(no_fonts: None):
    chosen = Fonts([])
    assert chosen.shorten("short", 500, 12) == "short"
    cut = chosen.shorten("word " * 50, 200, 12)
    assert cut.endswith("…")
    assert chosen.width(cut, 12) <= 200 < chosen.width(cut[:-1] + "wor…", 12)


def test_fonts_are_found_in_the_folders_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fonts.sys, "platform", "linux")
    monkeypatch.setenv("XDG_DATA_DIRS", f"{tmp_path / 'none'}:{tmp_path / 'share'}")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    names = (
        "a/Zebra.ttf",
        "a/Zebra-Bold.ttf",
        "NanumGothic.ttf",
        "b/c/NotoSansCJK-Regular.ttc",
        "LastResort.otf",
        "x.txt",
    )
    for name in names:
        path = tmp_path / "share" / "fonts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "own" / "fonts").mkdir(parents=True)
    (tmp_path / "own" / "fonts" / "Mine.OTF").touch()
    assert [path.name for path in font_files()] == [
        "NotoSansCJK-Regular.ttc",
        "NanumGothic.ttf",
        "Mine.OTF",
        "Zebra.ttf",
        "Zebra-Bold.ttf",
    ]


@pytest.mark.parametrize(
    ("characters", "package"),
    [
        ("고", "fonts-noto-cjk"),
        ("a猫", "fonts-noto-cjk"),
        ("ネ", "fonts-noto-cjk"),
        ("ह", "fonts-noto-core"),
        ("🦩", "fonts-symbola"),
    ],
)
def test_a_package_is_named_by_the_script(characters: str, package: str):
    assert package_with(characters) == package


@pytest.fixture
def korean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for label, name in enumerate(("cat", "고양이")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(12):
            pixels = np.random.default_rng([number, label]).integers(0, 256, (20, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


def test_a_sheet_without_a_font_numbers_its_classes_and_the_text_names_them(
    korean: Path, no_fonts: None, capsys: pytest.CaptureFixture[str]
):
    main(["check", str(korean)])
    printed = capsys.readouterr().out
    assert "so the sheet numbers them: class 2 is 고양이. " in printed
    assert "apt install fonts-noto-cjk" in printed
    data = open_data(str(korean))
    sheet = np.asarray(contact_sheet(data, (32, 32), "crop", 3))
    expected = Image.new("RGB", (300, 18), (252, 252, 250))
    Fonts([]).draw(ImageDraw.Draw(expected), (0, 0), "class 2: [U+ACE0][U+C591][U+C774]  (12)", (24, 28, 36), 12)
    top = 16 + 52 + 96 + 18 + 6  # margin, heading, and the row of the first class
    assert np.array_equal(sheet[top : top + 18, 16:316], np.asarray(expected))


def test_a_sheet_with_a_font_shows_the_names(korean: Path, hangul: Path, capsys: pytest.CaptureFixture[str]):
    main(["check", str(korean)])
    assert "No font" not in capsys.readouterr().out
    assert names_without_font(open_data(str(korean))) == ""
    sheet = np.asarray(Image.open("check.png").convert("RGB"))
    expected = Image.new("RGB", (60, 18), (252, 252, 250))
    font = ImageFont.truetype(str(hangul), 12)
    ImageDraw.Draw(expected).text((0, 12), "고양이", (24, 28, 36), font, anchor="ls")
    top, width = 16 + 52 + 96 + 18 + 6, int(font.getlength("고양이"))
    assert np.array_equal(sheet[top : top + 18, 16 : 16 + width], np.asarray(expected)[:, :width])
