"""The results of benchmarks/gpu.py as a Markdown page; ratios compare rows of one run."""

from __future__ import annotations

from typing import Any

COLUMNS = ("images/s", "ms", "speed / best peer", "share of ceiling", "peak GiB", "memory / best peer", "compile s")
HEAD = f"| | {' | '.join(COLUMNS)} |\n| --- |{' --- |' * len(COLUMNS)}"
TITLES = {"training": "Training", "inference": "Inference", "latency": "Latency"}


def page(results: list[dict[str, Any]]) -> str:
    """Return the page of one or several runs; a case that two have with the same GELU is taken from the later one."""
    latest = {
        (case["case"], result["about"]["gelu"]): number
        for number, result in enumerate(results)
        for case in result["cases"]
    }
    sections = [
        "# vitkit compared with timm, transformers and torchvision",
        "`python benchmarks/gpu.py --page` wrote this page from its measurements. Images and weights are random, "
        "figures are medians, and all rows of a table take turns in one run. A training step is forward, backward, "
        "gradient clipping at 1, AdamW and cross-entropy. The peers use bf16 autocast with torch's fused AdamW and "
        "launch kernel by kernel, as their own scripts do; vitkit trains as `vitkit fit` does, with forward and "
        "backward as one CUDA graph if memory allows. Inference uses bf16 weights unless a row says fp8. The best "
        "peer is the fastest row of another library. Share of ceiling: the model's FLOP/s, with FLOPs in closed "
        "form (training: three times forward), divided by those of a large matrix product in the same run. All "
        "FLOPs of a model count, for every library, although vitkit skips those of the last block that reach no "
        "logit; fp8 rows are compared with the bf16 ceiling, which they can exceed. Peak: the memory that torch "
        "allocates for a row; workspaces of matrix products, some 0.03 GiB each, count where they are first needed. "
        "Compile: how much longer the first call took than the others.",
    ]
    for number, result in enumerate(results):
        cases = [case for case in result["cases"] if latest[case["case"], result["about"]["gelu"]] == number]
        if cases:
            sections += [_about(result["about"]), *map(_table, cases)]
    return "\n\n".join(sections) + "\n"


def _about(about: dict[str, Any]) -> str:
    libraries = ", ".join(f"{name} {version}" for name, version in about["libraries"].items()) or "no other library"
    ceiling = about["ceiling"]
    precision = ceiling.get("precision") or ceiling["numbers"]  # its name in earlier versions
    cuda = f", CUDA {about['cuda']}" if about["cuda"] else ""
    return (
        f"**{about['device']}**, {about['date']}, torch {about['torch']}{cuda}, Python {about['python']}; "
        f"{libraries}; vitkit {about['vitkit']}; GELU: {about['gelu']}. Ceiling: "
        f"{ceiling['flops_per_second'] / 1e12:.3g} TFLOP/s, {precision}, {ceiling['side']}³. "
        f"`{about['command']}`"
    )


def _table(case: dict[str, Any]) -> str:
    batch = f"batch {case['batch']}" if case["batch"] > 1 else "one image at a time"
    lines = [f"## {TITLES[case['what']]}, {model_name(case)} at {case['image']} px, {batch}", "", HEAD]
    best = best_peer(case)
    for row in case["rows"]:
        name = f"{row['library']}, {row['how']}"
        lines.append(
            f"| {name} | failed: {_cell(row['failed'])} | | | | | | |"
            if "failed" in row
            else f"| {name} | {_figures(row, best)} |"
        )
    return "\n".join(lines)


def model_name(case: dict[str, Any]) -> str:
    return f"{case['model']} like {case['like']}'s" if case.get("like") else case["model"]


def best_peer(case: dict[str, Any]) -> dict[str, Any] | None:
    peers = [row for row in case["rows"] if row["library"] != "vitkit" and "failed" not in row]
    return max(peers, key=lambda row: images_per_second(row), default=None)


def images_per_second(row: dict[str, Any]) -> float:
    """Return a row's speed; results of earlier versions have it under another key."""
    return row["images_per_second"] if "images_per_second" in row else row["pictures_per_second"]


def speed_ratio(row: dict[str, Any], best: dict[str, Any] | None) -> float | None:
    return None if best is None else images_per_second(row) / images_per_second(best)


def memory_ratio(row: dict[str, Any], best: dict[str, Any] | None) -> float | None:
    if best is None or not row["peak_bytes"] or not best["peak_bytes"]:
        return None
    return row["peak_bytes"] / best["peak_bytes"]


def _figures(row: dict[str, Any], best: dict[str, Any] | None) -> str:
    peak = row["peak_bytes"]
    return " | ".join(
        [
            f"{images_per_second(row):,.0f}",
            f"{row['milliseconds']:.2f}",
            _number(speed_ratio(row, best), 2),
            f"{row['share_of_ceiling']:.2f}",
            _number(peak and peak / 2**30, 1),
            _number(memory_ratio(row, best), 2),
            _number(row["compile_seconds"], 0),
        ]
    )


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
