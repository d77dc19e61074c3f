"""Numbers as people read them: the same in the report and in the model card."""

from __future__ import annotations

import math

from vitkit.evaluate.evaluation import Estimate


def percent(share: float | None) -> str:
    """0.9091 → "90.9 %"."""
    if share is None or not math.isfinite(share):
        return "–"
    return "100 %" if share == 1 else f"{100 * share:.1f} %"


def interval(estimate: Estimate) -> str:
    return f"{100 * estimate.low:.1f} – {100 * estimate.high:.1f}"


def duration(seconds: float) -> str:
    """123.4 → "2 min 3 s"."""
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


def short(number: float) -> str:
    """5,526,309 → "5.5M"."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return f"{number:g}"


def products(macs: float) -> str:
    """1,258,000,000 → "1.26 GMACs"."""
    return f"{macs / 1e9:.3g} GMACs" if macs >= 1e8 else f"{macs / 1e6:.3g} MMACs"


def compute(operations: float) -> str:
    """Floating-point operations: 3.8e16 → "38 petaFLOPs"; from a tenth of an exaFLOP on in exaFLOPs, as the paper."""
    for size, unit in ((1e18, "exa"), (1e15, "peta"), (1e12, "tera")):
        if operations >= size or (unit == "exa" and operations >= size / 10):
            return f"{operations / size:,.3g} {unit}FLOPs"
    return f"{operations / 1e9:,.3g} gigaFLOPs"


def plural(count: int, noun: str) -> str:
    """1 → "1 picture", 3669 → "3,669 pictures"; class → classes."""
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if noun.endswith("s") else "s")


def unbroken(text: str) -> str:
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def size(image: tuple[int, int]) -> str:
    return f"{image[0]} px" if image[0] == image[1] else f"{image[0]} x {image[1]} px"
