"""Binary PGM and PPM of any depth: the values of Pillow, which reads them pixel by pixel."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitkit.data.decode import decode
from vitkit.data.pnm import read_pnm
from vitkit.errors import DecodeError

DEPTHS = st.one_of(st.integers(1, 65535), st.sampled_from([1, 254, 255, 256, 1023, 4095, 65535]))
GAPS = st.sampled_from([b" ", b"\n", b"\t \r\n", b"\n# a comment\n", b" # one\r# two\n "])


@given(bands=st.sampled_from([1, 3]), largest=DEPTHS, gaps=st.tuples(GAPS, GAPS, GAPS), data=st.data())
@settings(deadline=None)
def test_values_are_those_of_pillow(bands: int, largest: int, gaps: tuple[bytes, ...], data: st.DataObject):
    width, height = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    length = width * height * bands * (1 if largest < 256 else 2)
    values = data.draw(
        st.binary(min_size=length, max_size=length + 3)
    )  # also above the largest, and bytes after the end
    numbers = b"".join(gap + str(number).encode() for gap, number in zip(gaps, (width, height, largest), strict=True))
    content = (b"P6" if bands == 3 else b"P5") + numbers.replace(b"P", b"") + b"\n" + values
    if not content[2:3].isspace():
        return
    with Image.open(io.BytesIO(content)) as image:
        expected = np.asarray(image)
    ours = read_pnm(content)
    np.testing.assert_array_equal(ours[:, :, 0] if bands == 1 else ours, expected)
    assert ours.dtype == (np.uint16 if bands == 1 and largest > 255 else np.uint8)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_the_decoder_returns_what_it_returned_through_pillow(mode: str, channels: int):
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).convert(mode)
    file = io.BytesIO()
    image.save(file, "PPM")
    expected = np.asarray(image.convert("L" if channels == 1 else "RGB")).reshape(40, 50, channels)
    np.testing.assert_array_equal(decode(file.getvalue(), channels=channels), expected)


def test_sixteen_bits_of_grey_keep_their_depth():
    content = b"P5 2 1 65535\n" + np.array([0, 32769], ">u2").tobytes()
    np.testing.assert_allclose(decode(content, channels=1)[:, :, 0], [[0, 32769 * 255 / 65535]], rtol=1e-6)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"P6 2 2 255\n" + bytes(11), "truncated"),
        (b"P6 2 2 0\n" + bytes(12), "largest value"),
        (b"P6 2 2 65536\n" + bytes(24), "largest value"),
        (b"P6 0 2 255\n", "0 x 2"),
        (b"P6 2 2", "header"),
        (b"P6 #" + b"x" * 10_000 + b"\n2 2 255\n" + bytes(12), "header"),
        (b"P6" + b" " * 10_000 + b"2 2 255\n" + bytes(12), "header"),
        (b"P6 99999999 99999999 255\n", "over the limit"),
    ],
)
def test_a_file_that_is_not_complete_or_not_plausible_has_a_reason(content: bytes, reason: str):
    with pytest.raises(DecodeError, match=reason):
        decode(content)
