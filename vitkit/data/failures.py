"""Images that cannot be decoded: how many of a split may fail, and the error when there are more."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from vitkit.data.batch import Batch
from vitkit.data.sources.dataset import DataError, Split
from vitkit.errors import TOO_MANY_FAILED
from vitkit.text import printable

MAX_FAILED = 0.01  # share of the images that may fail to decode, where the user does not say

log = logging.getLogger("vitkit")


class TooManyFailures(DataError):
    """More images than the allowed share could not be decoded."""

    exit_code = TOO_MANY_FAILED
    share = 0.0  # of all images, so far


def allowed_failures(images: int, max_failed: float) -> int:
    """Return how many of the images may fail: the share `max_failed` of them.

    A share above 0 allows one also in sets so small that one is more than the share, and a share below 1 never all.
    """
    share = math.floor(max_failed * images + 1e-9)  # 0.29 · 100 is less than 29 in floats
    return min(max(share, 1), images - 1) if 0 < max_failed < 1 else share


def advised_max_failed(share: float) -> float:
    """Return a `max_failed` that allows this share of failures, and up to twice as many."""
    return min(math.ceil(20 * share - 1e-9) / 10, 1.0)


def too_many_failures(failed: int, images: int, allowed: float, such_as: Sequence[str] = ()) -> TooManyFailures:
    error = TooManyFailures(
        f"{failed} of {images:,} images could not be decoded so far, more than {allowed:.1%}.",
        **({"such_as": such_as} if such_as else {}),
        try_="vitkit check lists all of them",
    )
    error.share = failed / images
    return error


def record_failures(
    known: dict[int, str], batch: Batch, split: Split, max_failed: float, images: int | None = None
) -> None:
    """Add the batch's failures to the known ones, log each once, and raise an error when there are too many."""
    for index, reason in batch.failures:
        if index not in known:
            known[index] = reason
            log.warning("skipped: %s: %s", split.keys[index], reason)
    images = len(split) if images is None else images
    if len(known) > allowed_failures(images, max_failed):
        shown = [f"{split.keys[index]}: {reason}" for index, reason in list(known.items())[:5]]
        raise too_many_failures(len(known), images, max_failed, shown)


def failure_reason(error: Exception, key: str) -> str:
    """Return the error's first line without the image's name, which callers print next to it."""
    return str(error).splitlines()[0].removeprefix(f"{printable(key)} ")
