"""What benchmarks/gpu.py measured, as a page: every figure from its output, ratios from one run."""

from __future__ import annotations

from typing import Any

COLUMNS = ("pictures/s", "ms", "speed / best peer", "share of ceiling", "peak GiB", "memory / best peer", "compile s")
HEAD = f"| | {' | '.join(COLUMNS)} |\n| --- |{' --- |' * len(COLUMNS)}"
TITLES = {"training": "Training", "inference": "Inference", "latency": "Latency"}


def page(results: list[dict[str, Any]]) -> str:
    """Of one run, or of several that measured different cases; a case that is in two, with the same GELU, is taken from
    the later one."""
    latest = {
        (case["case"], result["about"]["gelu"]): number
        for number, result in enumerate(results)
        for case in result["cases"]
    }
    parts = [
        "# vitkit beside timm, transformers and torchvision",
        "Made by `python benchmarks/gpu.py --page`, from its measurements: random pictures and weights, medians, all "
        "rows of a table taking turns in one run. Training is forward, backward, clipping at 1, AdamW and "
        "cross-entropy, the others under bf16 autocast with torch's fused AdamW, vitkit as `vitkit fit` computes: "
        "each pass launched as one CUDA graph if there is room, where the others' own scripts launch kernel by kernel. "
        "Inference has bf16 weights unless a row says fp8. The best peer is the fastest row of another library. Share "
        "of ceiling: the model's "
        "operations in closed form (training: three times forward) over those of a large matrix product in the same "
        "run. All operations of a model are counted, for everybody, though vitkit leaves out those of the last block "
        "that reach no answer; fp8 rows stand beside the bf16 ceiling, which they can exceed. Peak: what torch "
        "allocates for a row; workspaces of matrix products, some 0.03 GiB each, count where they are first needed. "
        "Compile: how much longer the first time took than the others.",
    ]
    for number, result in enumerate(results):
        cases = [case for case in result["cases"] if latest[case["case"], result["about"]["gelu"]] == number]
        if cases:
            parts += [_about(result["about"]), *map(_table, cases)]
    return "\n\n".join(parts) + "\n"


def _about(about: dict[str, Any]) -> str:
    libraries = ", ".join(f"{name} {version}" for name, version in about["libraries"].items()) or "no other library"
    ceiling = about["ceiling"]
    cuda = f", CUDA {about['cuda']}" if about["cuda"] else ""
    return (
        f"**{about['device']}**, {about['date']}, torch {about['torch']}{cuda}, Python {about['python']}; "
        f"{libraries}; vitkit {about['vitkit']}; GELU: {about['gelu']}. Ceiling: "
        f"{ceiling['flops_per_second'] / 1e12:.3g} TFLOP/s, {ceiling['numbers']}, {ceiling['side']}³. "
        f"`{about['command']}`"
    )


def _table(case: dict[str, Any]) -> str:
    pictures = f"batch {case['batch']}" if case["batch"] > 1 else "one picture at a time"
    lines = [f"## {TITLES[case['what']]}, {case['model']} at {case['image']} px, {pictures}", "", HEAD]
    best = best_peer(case)
    for row in case["rows"]:
        name = f"{row['library']}, {row['how']}"
        lines.append(
            f"| {name} | failed: {_cell(row['failed'])} | | | | | | |"
            if "failed" in row
            else f"| {name} | {_figures(row, best)} |"
        )
    return "\n".join(lines)


def best_peer(case: dict[str, Any]) -> dict[str, Any] | None:
    peers = [row for row in case["rows"] if row["library"] != "vitkit" and "failed" not in row]
    return max(peers, key=lambda row: row["pictures_per_second"], default=None)


def ratio(row: dict[str, Any], best: dict[str, Any] | None, what: str) -> float | None:
    """To the best peer in this case."""
    if best is None or not row[what] or not best[what]:
        return None
    return row[what] / best[what]


def _figures(row: dict[str, Any], best: dict[str, Any] | None) -> str:
    peak = row["peak_bytes"]
    return " | ".join(
        [
            f"{row['pictures_per_second']:,.0f}",
            f"{row['milliseconds']:.2f}",
            _number(ratio(row, best, "pictures_per_second"), 2),
            f"{row['share_of_ceiling']:.2f}",
            _number(peak and peak / 2**30, 1),
            _number(ratio(row, best, "peak_bytes"), 2),
            _number(row["compile_seconds"], 0),
        ]
    )


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
