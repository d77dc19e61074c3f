"""Numbers, names and lists as people read them: the same words in messages, reports and model cards."""

import math
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime

JOINERS = "\u200c\u200d"  # invisible, and part of words and emoji: Persian and Hindi need them


def printable(text: str) -> str:
    """Return the text on one line that a terminal only shows: names from outside may hold anything.

    Line breaks, terminal commands, characters that turn the direction of writing, and bytes that are not text are
    escaped: "\\x1b[31m". Whatever is printed comes through here; a second time changes nothing.
    """
    if text.isprintable():
        return text
    return "".join(
        character if _is_shown(character) else character.encode("unicode_escape").decode() for character in text
    )


def _is_shown(character: str) -> bool:
    return character.isprintable() or character in JOINERS or unicodedata.category(character) == "Zs"  # all spaces


def printable_lines(text: str) -> str:
    """Return text of several lines, each of them printable."""
    return "\n".join(map(printable, text.split("\n")))


def valid_utf8(name: str) -> str:
    """Return a name as valid UTF-8, as files have to be: names on disk need not be text."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def few(names: Sequence[str], count: int = 5) -> str:
    """Return the first names and how many more there are: "a, b, c and 12 more"."""
    more = len(names) - count
    return ", ".join(names[:count]) + (f" and {more:,} more" if more > 0 else "")


def counted(number: int, noun: str, many: str = "") -> str:
    """Return "1 image", "3,669 images", "37 classes"; `many` is the plural where no rule gives it."""
    many = many or noun + ("es" if noun.endswith("s") else "s")
    return f"{number:,} {noun if number == 1 else many}"


def percent(share: float | None) -> str:
    """Return 0.9091 as "90.9 %"."""
    if share is None or not math.isfinite(share):
        return "–"
    return "100 %" if share == 1 else f"{100 * share:.1f} %"


def interval(low: float, high: float) -> str:
    """Return the bounds 0.9 and 0.925 as "90.0 – 92.5"."""
    return f"{100 * low:.1f} – {100 * high:.1f}"


def duration(seconds: float) -> str:
    """Return 123.4 seconds as "2 min 3 s"."""
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_rest = divmod(minutes, 60)
    days, hours_rest = divmod(hours, 24)
    if days:
        return f"{days} d {hours_rest} h"
    if hours:
        return f"{hours} h {minutes_rest} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def utc_timestamp() -> str:
    """Return the date and time in UTC to the second, as records keep it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def short_number(number: float) -> str:
    """Return 5,526,309 as "5.5M"."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return f"{number:g}"


def binary_size(count: int, digits: int = 1) -> str:
    """Return bytes as "1.5 GiB" or "12.0 MiB"."""
    return f"{count / 2**30:.{digits}f} GiB" if count >= 2**30 else f"{count / 2**20:.{max(digits - 1, 0)}f} MiB"


def mac_count(macs: float) -> str:
    """Return 1,258,000,000 multiply-adds as "1.26 GMACs"."""
    return f"{macs / 1e9:.3g} GMACs" if macs >= 1e8 else f"{macs / 1e6:.3g} MMACs"


def flop_count(flops: float) -> str:
    """Return 3.8e16 floating-point operations as "38 petaFLOPs"; in exaFLOPs, the paper's unit, from a tenth of one."""
    for size, unit in ((1e18, "exa"), (1e15, "peta"), (1e12, "tera")):
        if flops >= size or (unit == "exa" and flops >= size / 10):
            return f"{flops / size:,.3g} {unit}FLOPs"
    return f"{flops / 1e9:,.3g} gigaFLOPs"


def image_size(image: tuple[int, int]) -> str:
    """Return (224, 224) as "224 px" and (224, 320) as "224 x 320 px"."""
    return f"{image[0]} px" if image[0] == image[1] else f"{image[0]} x {image[1]} px"
