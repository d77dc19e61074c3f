"""The Accept header: the type of response that a client prefers, as RFC 9110 weighs media ranges."""

from __future__ import annotations

import pytest

from vitkit.serve.accept import prefers


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("application/json", False),
        ("image/png", True),
        ("IMAGE/PNG; charset=x", True),
        ("image/*", True),
        ("image/png, application/json", False),  # as welcome as JSON, which other clients get
        ("image/png, application/json;q=0.9", True),
        ("image/png;q=0.2, */*;q=0.5", False),
        ("image/avif,image/webp,image/*,*/*;q=0.8", True),
        ("image/*;q=0, image/png", True),  # the most specific range counts
        ("image/png;q=nonsense, */*;q=0.1", False),
        ("image/jpeg, text/html", False),
        (",;,q=1;;", False),
    ],
)
def test_a_mask_is_sent_as_an_image_to_those_who_prefer_it(accept: str, expected: bool):
    assert prefers(accept, "image/png", "application/json") is expected
