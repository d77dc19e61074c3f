"""Groups of images that belong together, such as those of one patient, by a pattern that their paths match."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from vitkit.data.sources.class_labels import with_groups
from vitkit.data.sources.dataset import Data, DataError
from vitkit.errors import ConfigError
from vitkit.text import counted

GROUP_COLUMN = "group"  # recognised by itself


def group_by_pattern(data: Data, pattern: str) -> Data:
    """Return the data with a group for each text that the regular expression matches in the names of the images.

    Where the pattern has parts in parentheses, their text counts: "(patient\\d+)_view" or "/(\\d+)_(\\d+)_frame".
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"group = {pattern!r} is not a regular expression: {error}.",
            try_=r"a part of the path in parentheses, such as (patient\d+), or a column of a manifest",
        ) from None
    names = {split: [_matched(expression, key) for key in images.keys] for split, images in data.splits.items()}
    matched = [name for split in names.values() for name in split]
    if not any(name is not None for name in matched):
        keys = next(iter(data.splits.values())).keys
        raise DataError(
            f"group = {pattern!r} matches no image of {data.name}"
            + (", and it is no column of it." if data.kind == "manifest" else "."),
            such_as=[keys[index] for index in range(min(len(keys), 3))],
            try_=r"a regular expression that is in the path, such as (patient\d+)",
        )
    notes = (*data.notes, group_note(matched, pattern))
    return replace(data, splits=with_groups(data.splits, names), notes=notes)


def group_note(groups: Sequence[str | None], source: str) -> str:
    """Return a line such as "412 groups of 1 to 31 images by patient\\d+; 3 images are in none"."""
    counts = Counter(name for name in groups if name is not None).values()
    if not counts:
        return f"{source} names no group"
    sizes = f"{min(counts):,} to {max(counts):,} images" if min(counts) < max(counts) else counted(max(counts), "image")
    ungrouped = len(groups) - sum(counts)
    rest = f"; {counted(ungrouped, 'image is', 'images are')} in none" if ungrouped else ""
    return f"{counted(len(counts), 'group')} of {sizes} by {source}, each on one side of every split{rest}"


def _matched(expression: re.Pattern[str], key: str) -> str | None:
    match = expression.search(key)
    if match is None:
        return None
    return "\0".join(part or "" for part in match.groups()) if match.groups() else match.group()
