"""COCO's RLE, against pycocotools."""

from __future__ import annotations

import contextlib

import numpy as np
import pycocotools.mask as coco
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from vitkit.data.masks.rle import decode_rle, encode_rle
from vitkit.errors import DecodeError

masks = arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=40))


@given(masks)
def test_encoding_equals_that_of_pycocotools(mask: np.ndarray):
    theirs = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    assert encode_rle(mask) == {"size": theirs["size"], "counts": theirs["counts"].decode()}


@given(masks)
def test_decoding_returns_the_mask_of_compressed_and_of_uncompressed_counts(mask: np.ndarray):
    assert (decode_rle(encode_rle(mask), mask.shape) == mask).all()
    flat = np.concatenate([[False], mask.ravel(order="F"), [not mask.ravel(order="F")[-1]]])
    counts = np.diff(np.flatnonzero(np.concatenate([[True], flat[1:] != flat[:-1]]))).tolist()
    counts[0] -= 1  # the False in front
    assert (decode_rle({"size": [*mask.shape], "counts": counts}) == mask).all()
    theirs = coco.decode(coco.frPyObjects({"size": [*mask.shape], "counts": counts}, *mask.shape))
    assert (theirs == mask).all()


def test_large_runs_and_differences_equal_those_of_pycocotools():
    mask = np.zeros((3000, 2000), bool)
    mask[1500:1502, 3:1999:7] = True
    mask[:, 1000] = True
    assert encode_rle(mask)["counts"] == coco.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"].decode()
    assert (decode_rle(encode_rle(mask)) == mask).all()


@pytest.mark.parametrize(
    ("rle", "reason"),
    [
        ({"counts": "0"}, "no size"),
        ({"size": [2], "counts": "0"}, "no size"),
        ({"size": [2, 2]}, "neither text nor a list"),
        ({"size": [2, 2], "counts": [1, -1, 4]}, "neither text nor a list"),
        ({"size": [2, 2], "counts": [1, True, 2]}, "neither text nor a list"),
        ({"size": [2, 2], "counts": [1, 2]}, "add up to 3 pixels, its size 2 x 2 to 4"),
        ({"size": [2, 2], "counts": "é"}, "not COCO's compressed text"),
        ({"size": [2, 2], "counts": "T"}, "end in the middle of a number"),
        ({"size": [2, 2], "counts": "T" * 50}, "not COCO's compressed text"),
        ({"size": [10**9, 10**9], "counts": [10**18]}, "over the limit"),
    ],
)
def test_malformed_rle_is_an_error_with_the_reason(rle: dict[str, object], reason: str):
    with pytest.raises(DecodeError, match=reason):
        decode_rle(rle)


def test_rle_of_another_size_than_its_image_is_an_error():
    with pytest.raises(DecodeError, match=r"its RLE is 2 x 3 \(height x width\), its image 3 x 2"):
        decode_rle({"size": [2, 3], "counts": [6]}, (3, 2))


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60))
def test_any_text_is_a_mask_or_an_error(text: str):
    with contextlib.suppress(DecodeError):
        assert decode_rle({"size": [4, 4], "counts": text}).shape == (4, 4)
