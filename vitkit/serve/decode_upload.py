"""Decode an uploaded image, with no more pixels than the server has counted for it.

Budgets and turns depend on the pixels that a header states. A header that states fewer than the decoder finds, or none,
must not get around them.
"""

import numpy as np

from vitkit.data.decode import decode, only_decode_errors
from vitkit.errors import DecodeError, TooManyPixels
from vitkit.serve.image_formats import check_format
from vitkit.serve.pixel_count import stated_pixels

UNSTATED_LIMIT = 16_000_000  # pixels of an image whose header states no size that the server understands


def decode_upload(content: bytes, *, channels: int, pixel_limit: int) -> np.ndarray:
    """Return the pixels (height, width, channels), or raise DecodeError for an image that a server should not open."""
    stated = stated_pixels(content)
    limit = min(pixel_limit, stated or UNSTATED_LIMIT)
    with only_decode_errors():
        formats = check_format(content, channels=channels, pixel_limit=pixel_limit) if content else ()
    try:
        return decode(content, channels=channels, pixel_limit=limit, formats=formats)
    except TooManyPixels:
        if limit == pixel_limit:
            raise
        raise DecodeError("damaged: it has more pixels than its header states") from None
