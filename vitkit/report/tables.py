"""What a run cost and where it comes from, as rows of a name and a text."""

from __future__ import annotations

from typing import Any

from vitkit.report.findings import training_operations
from vitkit.report.record import NOT_RECORDED, Record
from vitkit.text import duration, flop_count, image_size, mac_count, percent

Rows = list[tuple[str, str]]


def cost(record: Record) -> Rows:
    operations = training_operations(record)
    rates = [row["images_per_second"] for row in record.speeds if row.get("images_per_second")]
    waits = [row["data_wait"] for row in record.speeds if row.get("data_wait") is not None]
    plan = record.told("plan") or {}
    image = f" at {image_size(record.architecture.image)}" if record.architecture else ""
    return [
        ("parameters", f"{record.parameters:,}" if record.parameters else NOT_RECORDED),
        ("one picture", f"{mac_count(record.macs)} forward{image}" if record.macs else NOT_RECORDED),
        ("training", flop_count(operations) + ", forward and backward" if operations else NOT_RECORDED),
        ("time", duration(record.told("seconds")) if record.told("seconds") else NOT_RECORDED),
        ("speed", f"{sorted(rates)[len(rates) // 2]:,.0f} pictures a second" if rates else NOT_RECORDED),
        ("waiting", f"{percent(sum(waits) / len(waits))} of the time, for data" if waits else NOT_RECORDED),
        ("batch", f"{plan['batch']:,} pictures" + _division(plan) if plan.get("batch") else NOT_RECORDED),
    ]


def _division(plan: dict[str, Any]) -> str:
    parts = [
        f"{plan[name]:,} {word}"
        for name, word in (("processes", "processes"), ("accumulate", "passes"), ("micro", "at a time"))
        if plan.get(name, 1) != 1
    ]
    return f" ({' x '.join(parts)})" if parts else ""


def origin(record: Record) -> Rows:
    data = record.told("data") or {}
    counts = ", ".join(f"{count:,} {name}" for name, count in (data.get("pictures") or {}).items())
    versions = ", ".join(f"{name} {version}" for name, version in (record.told("versions") or {}).items())
    rows = [
        ("command", record.told("command")),
        ("data", ", ".join(filter(None, (record.data_name, data.get("kind"), counts)))),
        *(("", note) for note in data.get("notes") or ()),
        *((("split", _split(record.told("split"))),) if record.told("split") else ()),
        ("fingerprint", data.get("fingerprint")),
        ("started", _moment(record.told("started"))),
        ("finished", _moment(record.told("finished"))),
        ("machine", record.told("machine")),
        ("device", record.told("device")),
        ("versions", versions),
    ]
    return [(name, str(text or NOT_RECORDED)) for name, text in rows]


def _split(made: Any) -> str:
    """How pictures were set aside where the data had no test split of their own."""
    if isinstance(made, dict) and {"source", "share", "seed"} <= made.keys():
        return f"{made['share']:.0%} of each class of {made['source']} set aside for scoring, seed {made['seed']}"
    return str(made)


def _moment(stamp: str | None) -> str | None:
    """ISO to the second, which is as exact as anyone reads it."""
    return stamp[:19].replace("T", " ") + stamp[19:].lstrip("0123456789.").replace("+00:00", " UTC") if stamp else None
