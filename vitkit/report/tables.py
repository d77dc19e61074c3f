"""The cost of a run and its provenance, as rows of a name and a text."""

from typing import Any

from vitkit.data.subset import SubsetRecord, describe_subset
from vitkit.report.run_data import NOT_RECORDED, RunData
from vitkit.report.summary import training_flops
from vitkit.text import duration, flop_count, image_size, mac_count, percent

Rows = list[tuple[str, str]]


def cost_table(run: RunData) -> Rows:
    flops = training_flops(run)
    rates = [row["images_per_second"] for row in run.speeds if row.get("images_per_second")]
    waits = [row["data_wait"] for row in run.speeds if row.get("data_wait") is not None]
    plan, saving = run.lookup("plan") or {}, run.lookup("checkpoint_wait") or {}
    image = f" at {image_size(run.architecture.image)}" if run.architecture else ""
    rows = [
        ("parameters", f"{run.parameters:,}" if run.parameters else NOT_RECORDED),
        ("one image", f"{mac_count(run.macs)} forward{image}" if run.macs else NOT_RECORDED),
        ("training", flop_count(flops) + ", forward and backward" if flops else NOT_RECORDED),
        ("time", duration(run.lookup("seconds")) if run.lookup("seconds") else NOT_RECORDED),
        ("speed", f"{sorted(rates)[len(rates) // 2]:,.0f} images/s" if rates else NOT_RECORDED),
        ("data wait", f"{percent(sum(waits) / len(waits))} of the time" if waits else NOT_RECORDED),
        *((("checkpoint wait", f"{percent(saving['share'])} of the time"),) if "share" in saving else ()),
        ("batch", f"{plan['batch']:,} images" + _batch_split(plan) if plan.get("batch") else NOT_RECORDED),
    ]
    # a head on frozen features has no training steps: nothing of them is missing
    return [row for row in rows if row[1] != NOT_RECORDED] if run.lookup("head") else rows


def _batch_split(plan: dict[str, Any]) -> str:
    """Return " (2 micro-batches x 256)", or nothing if the batch is not split."""
    factors = [
        f"{plan[name]:,} {noun}"
        for name, noun in (("processes", "processes"), ("accumulate", "micro-batches"))
        if plan.get(name, 1) != 1
    ]
    return f" ({' x '.join(factors)} x {plan['micro']:,})" if factors and "micro" in plan else ""


def provenance_table(run: RunData) -> Rows:
    data = run.lookup("data") or {}
    counts = ", ".join(f"{count:,} {name}" for name, count in run.image_counts.items())
    versions = ", ".join(f"{name} {version}" for name, version in (run.lookup("versions") or {}).items())
    rows = [
        ("command", run.lookup("command")),
        ("data", ", ".join(filter(None, (run.data_name, data.get("kind"), counts)))),
        *(("", note) for note in data.get("notes") or ()),
        *((("split", _held_out(run.lookup("split"))),) if run.lookup("split") else ()),
        *((("subset", _subset(run.lookup("subset"))),) if run.lookup("subset") else ()),
        ("fingerprint", data.get("fingerprint")),
        ("started", _timestamp(run.lookup("started"))),
        ("finished", _timestamp(run.lookup("finished"))),
        ("machine", run.lookup("machine")),
        ("device", run.lookup("device")),
        ("versions", versions),
    ]
    return [(name, str(text or NOT_RECORDED)) for name, text in rows]


def _held_out(split: Any) -> str:
    """Describe which images were held out, where the data have no test split of their own."""
    if isinstance(split, dict) and {"source", "share", "seed"} <= split.keys():
        share = f"{split['share']:.0%} of each class of {split['source']}"
        grouped = ", copies and groups as a whole" if "groups" in split else ""
        return f"{share} held out for scoring{grouped}, seed {split['seed']}"
    return str(split)


def _subset(record: SubsetRecord) -> str:
    return f"{describe_subset(record)}, seed {record['seed']}"


def _timestamp(stamp: str | None) -> str | None:
    """Format an ISO timestamp to the second."""
    return stamp[:19].replace("T", " ") + stamp[19:].lstrip("0123456789.").replace("+00:00", " UTC") if stamp else None
