"""Mask files in every mode that Pillow writes, and the classes that their numbers and colours are."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.masks.sample_masks import numbers, save
from vitkit.data.masks.class_table import ClassTable, NamedClass, build_table
from vitkit.data.masks.ignore import IGNORE
from vitkit.data.masks.mask_file import decode_mask
from vitkit.data.masks.palette import default_palette
from vitkit.data.masks.scan import MaskScan, scan_masks, table_of_scan
from vitkit.data.sources.dataset import DataError, PackedStrings
from vitkit.data.sources.image_files import FileImages
from vitkit.errors import DecodeError

COLOURS = {0: (0, 0, 0), 1: (200, 0, 10), 2: (10, 200, 255)}
NAMED = [NamedClass("background", 0, COLOURS[0]), NamedClass("cat", 1, COLOURS[1]), NamedClass("dog", 2, COLOURS[2])]


def png(image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


def scan_of(paths: list[Path]) -> MaskScan:
    return scan_masks(FileImages(".", PackedStrings(map(str, paths))), range(len(paths)))


def as_modes() -> dict[str, Image.Image]:
    mask = numbers(1)
    palette = Image.fromarray(mask, "L").convert("P")
    palette.putpalette([value for number in range(3) for value in COLOURS[number]])
    shuffled = Image.fromarray(np.array([2, 0, 1], np.uint8)[mask], "L").convert("P")
    shuffled.putpalette([*COLOURS[1], *COLOURS[2], *COLOURS[0]])
    colours = Image.fromarray(np.array([COLOURS[number] for number in range(3)], np.uint8)[mask])
    return {
        "L": Image.fromarray(mask),
        "LA": Image.merge("LA", [Image.fromarray(mask), Image.fromarray(mask * 100)]),
        "P": palette,
        "P in another order": shuffled,
        "16 bits": Image.fromarray(mask.astype(np.uint16)),
        "RGB": colours,
        "RGBA": colours.convert("RGBA"),
    }


@pytest.mark.parametrize("mode", as_modes())
def test_every_mode_is_read_as_the_same_classes(mode: str):
    table = build_table(NAMED, "classes.csv")
    assert (table.classes_of(decode_mask(png(as_modes()[mode]))) == numbers(1)).all()
    assert table.palette == tuple(COLOURS.values())


def test_numbers_that_were_saved_as_grey_rgb_are_numbers():
    table = build_table([NamedClass(name) for name in ("background", "cat", "dog")], "classes.txt")
    assert (table.classes_of(decode_mask(png(Image.fromarray(numbers(1)).convert("RGB")))) == numbers(1)).all()


def test_a_mask_is_turned_by_its_own_exif_orientation():
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = png(Image.fromarray(np.rot90(numbers(1), 1).copy()), exif=exif)
    assert (decode_mask(stored).values == numbers(1)).all()


def test_numbers_over_255_are_read_from_16_bits():
    mask = np.array([[0, 1000], [40000, 255]], np.uint16)
    table = build_table([NamedClass("a", 0), NamedClass("b", 1000), NamedClass("c", 40000)], "classes.json")
    assert table.classes_of(decode_mask(png(Image.fromarray(mask)))).tolist() == [[0, 1], [2, IGNORE]]


@pytest.mark.parametrize("name", ["void", "Void", "ignore", "unlabelled", "Unlabeled", "don't care", "ignore_255"])
def test_names_that_mean_ignored_are_no_classes(name: str):
    table = build_table([NamedClass("road"), NamedClass(name), NamedClass("sky")], "classes.txt")
    assert table.names == ("road", "sky")
    assert table.numbers[[0, 1, 2, 255]].tolist() == [0, IGNORE, 1, IGNORE]
    assert table.ignored == (f"{name} (1)",)


def test_255_with_the_name_of_a_class_is_that_class():
    table = build_table([NamedClass("cat", 0), NamedClass("background", 255)], "classes.json")
    assert table.numbers[[0, 255]].tolist() == [0, 1]


@pytest.mark.parametrize("mode", ["L", "1", "RGB", "I;16"])
def test_binary_masks_are_background_and_foreground_and_nothing_is_ignored(mode: str, tmp_path: Path):
    white = np.array([[0, 255], [255, 0]], np.uint8)
    image = Image.fromarray(white.astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(white).convert(mode)
    path = save(tmp_path / "a.png", image)
    table, notes = table_of_scan(scan_of([path]), "data")
    assert table.names == ("background", "foreground")
    assert table.classes_of(decode_mask(path.read_bytes())).tolist() == [[0, 1], [1, 0]]
    assert "nothing is ignored" in notes[0]


def test_two_names_are_for_the_0_and_255_of_binary_masks():
    table = build_table([NamedClass("ground"), NamedClass("building")], "classes.txt", numbers_found={0, 255})
    assert table.numbers[[0, 255]].tolist() == [0, 1]


def test_two_grey_colours_are_for_the_levels_of_a_mask_with_one_channel():
    table = build_table([NamedClass("a", colour=(0, 0, 0)), NamedClass("b", colour=(255, 255, 255))], "class_dict.csv")
    assert table.classes_of(decode_mask(png(Image.fromarray(np.array([[0, 255]], np.uint8))))).tolist() == [[0, 1]]


def scanned(tmp_path: Path, *masks: np.ndarray | Image.Image) -> tuple[ClassTable, list[str]]:
    paths = [save(tmp_path / f"{number}.png", mask) for number, mask in enumerate(masks)]
    return table_of_scan(scan_of(paths), "data")


def test_numbers_without_names_become_classes_and_255_is_ignored(tmp_path: Path):
    table, notes = scanned(tmp_path, np.array([[0, 7]], np.uint8), np.array([[2, 255]], np.uint8))
    assert table.names == ("class 0", "class 2", "class 7")
    assert table.numbers[[0, 2, 7, 255, 1]].tolist() == [0, 1, 2, IGNORE, -1]
    assert "0, 2, 7" in notes[0]
    assert "pixels of 255 are ignored (1 mask has some)" in notes[1]
    assert table.palette == default_palette(3)


def test_colours_without_names_become_classes_by_their_hex_codes(tmp_path: Path):
    table, notes = scanned(tmp_path, as_modes()["RGB"])
    assert table.names == ("#000000", "#0ac8ff", "#c8000a")
    assert "#0ac8ff" in notes[0]
    assert (table.classes_of(decode_mask(png(as_modes()["RGB"]))) == np.array([0, 2, 1])[numbers(1)]).all()


def test_the_palette_of_files_gives_numbers_their_colours(tmp_path: Path):
    table, _ = scanned(tmp_path, as_modes()["P"])
    assert table.palette == tuple(COLOURS.values())
    assert table.names == ("class 0", "class 1", "class 2")


def test_colours_are_classes_where_the_palettes_of_files_differ(tmp_path: Path):
    modes = as_modes()
    table, notes = scanned(tmp_path, modes["P"], modes["P in another order"])
    assert table.names == ("#000000", "#0ac8ff", "#c8000a")
    assert "differ from file to file" in notes[1]
    one, other = (table.classes_of(decode_mask(png(modes[mode]))) for mode in ("P", "P in another order"))
    assert (one == other).all()


def test_more_colours_than_classes_can_be_is_an_error_with_the_likely_reason(tmp_path: Path):
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    path = save(tmp_path / "a.png", noise)
    with pytest.raises(DataError, match="JPEG") as error:
        table_of_scan(scan_of([path]), "data")
    assert "more than 254 colours" in str(error.value)
    assert "nearest neighbour" in str(error.value)


def test_masks_of_ignored_pixels_alone_are_an_error(tmp_path: Path):
    with pytest.raises(DataError, match="all pixels of the masks in data are 255") as error:
        scanned(tmp_path, np.full((2, 2), 255, np.uint8))
    assert 'classes.json beside the masks: {"255": "NAME"}' in str(error.value)


def test_an_unknown_number_is_named_with_its_first_pixel():
    table = build_table([NamedClass("cat"), NamedClass("dog")], "classes.txt")
    mask = np.zeros((4, 5), np.uint8)
    mask[2, 3:] = 9
    with pytest.raises(DecodeError, match=r"2 pixels have the number 9, of no class in classes.txt .*row 2, column 3"):
        table.classes_of(decode_mask(png(Image.fromarray(mask))))


def test_an_unknown_colour_is_named():
    table = build_table(NAMED, "class_dict.csv")
    mask = np.zeros((4, 5, 3), np.uint8)
    mask[0, 0] = 1, 2, 3
    with pytest.raises(DecodeError, match=r"1 pixel has the colour #010203, of no class in class_dict.csv"):
        table.classes_of(decode_mask(png(Image.fromarray(mask))))


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([NamedClass("a", 3), NamedClass("b", 3)], "gives the number 3 to more than one class"),
        ([NamedClass("a", 70000)], "class number 70000"),
        ([NamedClass("void")], "names no class that is not ignored"),
        ([NamedClass(f"class {n}") for n in range(255)], "255 classes, more than the 254"),
        ([NamedClass("a", colour=(1, 2, 3)), NamedClass("b", colour=(1, 2, 3))], "two classes the colour"),
    ],
)
def test_tables_that_cannot_be_are_errors(classes: list[NamedClass], message: str):
    with pytest.raises(DataError, match=message):
        build_table(classes, "classes.csv")


@pytest.mark.parametrize("content", [b"", b"no image", png(Image.new("L", (9, 9)))[:40]])
def test_a_damaged_mask_is_an_error(content: bytes):
    with pytest.raises(DecodeError):
        decode_mask(content)


def test_the_default_palette_is_that_of_pascal_voc():
    voc = ((0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0), (0, 0, 128), (128, 0, 128))
    assert default_palette(6) == voc
    assert default_palette(22)[-1] == (128, 64, 128)
    assert len(set(default_palette(254))) == 254
