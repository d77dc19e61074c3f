"""Numbers, names and lists are formatted for people."""

from __future__ import annotations

import pytest

from vitkit.text import (
    binary_size,
    counted,
    duration,
    few,
    flop_count,
    image_size,
    interval,
    mac_count,
    percent,
    short_number,
    valid_utf8,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (percent(0.90912), "90.9 %"),
        (percent(1.0), "100 %"),
        (percent(None), "–"),
        (percent(float("nan")), "–"),
        (duration(0), "0.0 s"),
        (duration(3.21), "3.2 s"),
        (duration(59.4), "59 s"),
        (duration(59.6), "1 min 0 s"),
        (duration(123.4), "2 min 3 s"),
        (duration(3600 * 5 + 61), "5 h 1 min"),
        (duration(3599.7), "1 h 0 min"),
        (duration(3600 * 50), "2 d 2 h"),
        (short_number(5_526_346), "5.5M"),
        (short_number(27_978), "28.0k"),
        (short_number(12), "12"),
        (flop_count(2.3e20), "230 exaFLOPs"),
        (flop_count(1.4e17), "0.14 exaFLOPs"),
        (flop_count(3.8e16), "38 petaFLOPs"),
        (flop_count(4.1e12), "4.1 teraFLOPs"),
        (mac_count(1.258e9), "1.26 GMACs"),
        (mac_count(1.57e6), "1.57 MMACs"),
        (counted(1, "image"), "1 image"),
        (counted(3669, "image"), "3,669 images"),
        (counted(37, "class"), "37 classes"),
        (counted(2, "class has", "classes have"), "2 classes have"),
        (interval(0.9, 0.925), "90.0 – 92.5"),
        (binary_size(3 * 2**29), "1.5 GiB"),
        (binary_size(12 * 2**20), "12 MiB"),
        (image_size((224, 224)), "224 px"),
        (image_size((224, 320)), "224 x 320 px"),
        (few(["a", "b", "c"], 2), "a, b and 1 more"),
        (valid_utf8("a\udcff.jpg"), "a\\udcff.jpg"),
    ],
)
def test_numbers_names_and_lists_are_formatted(text: str, expected: str) -> None:
    assert text == expected
