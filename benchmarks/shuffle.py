"""The quality of shuffling: training on shards in random order with a buffer, beside a full shuffle.

    python benchmarks/shuffle.py [--epochs 5] [--seeds 3] [--model mu/4] [--out docs/shuffle] [--folder DIR]

The images of `fashion` (6,000 to train on, ten classes) are written as 40 tar files twice: sorted by class, the worst
case, so that a file has images of one class only; and in random order, as `vitkit shard` would write a shuffled list.
`vitkit fit` then trains the same small ViT from scratch with `shuffle = full`, and with `shuffle = shards` and buffers
of 1, 4 and 10 files, over several seeds, and validates after each epoch. With --out, the scores of all runs are
written to runs.jsonl, and the tables of docs/shuffle/README.md are made of them; --page makes them again.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

FILES = 40
ARMS = {  # name: order of the images in the tar files, tar files in the buffer
    "full shuffle": ("random", 0),
    "random files, buffer of 1": ("random", 1),
    "sorted by class, buffer of 1": ("sorted", 1),
    "sorted by class, buffer of 4": ("sorted", 4),
    "sorted by class, buffer of 10": ("sorted", 10),
}
T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's t for a two-sided interval, by the number of seeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--model", default="mu/4")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--out", type=Path, help="the folder of runs.jsonl and README.md")
    parser.add_argument("--folder", type=Path, help="where shards and runs are written; default: a temporary folder")
    parser.add_argument("--page", action="store_true", help="make the page of --out again, without training")
    options = parser.parse_args()
    if options.page:
        rows = [json.loads(line) for line in (options.out / "runs.jsonl").read_text().splitlines()]
    else:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            rows = run_all(Path(folder), options)
    text = page(rows)
    print(text)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (options.out / "README.md").write_text(text)


def run_all(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    per_file = {order: write(folder / order, order) for order in ("sorted", "random")}
    rows = []
    for seed in range(options.seeds):
        for arm, (order, files) in ARMS.items():
            shuffle = {"shuffle": "shards", "shuffle_buffer": files * per_file[order]} if files else {"shuffle": "full"}
            out = folder / f"{len(rows)}"
            scores = train(folder / order, out, seed, shuffle, options)
            rows.append({"arm": arm, "seed": seed, "epochs": options.epochs, "model": options.model} | shuffle | scores)
            print(json.dumps(rows[-1]), flush=True)
    return rows


def write(folder: Path, order: str) -> int:
    """Write fashion as tar files and return how many images a file has."""
    from vitkit.data.shard_writer import write_shards
    from vitkit.data.sources.open import open_data

    data = open_data("fashion")
    train = data.splits["train"]
    assert isinstance(train.labels, np.ndarray)
    by_class = np.argsort(train.labels, kind="stable")
    chosen = by_class if order == "sorted" else np.random.default_rng(0).permutation(len(train))
    splits = {"train": train.select(chosen), "val": data.splits["test"]}
    per_file = len(train) // FILES
    size = len(train.read(0)) if isinstance(train.read(0), bytes) else 1000  # what a member takes is rounded up
    write_shards(replace(data, splits=splits), folder, megabytes=per_file * (1536 + 512 * -(-size // 512)) / 1e6)
    written = json.loads((folder / "index.json").read_text())["splits"]["train"]["shards"]
    print(f"{order}: {len(written)} tar files")
    return len(train) // len(written)


def train(
    data: Path, out: Path, seed: int, shuffle: dict[str, Any], options: argparse.Namespace
) -> dict[str, list[float]]:
    """Train a small ViT and return its validation accuracy after each epoch."""
    import vitkit

    steps = math.ceil(6000 / options.batch)
    vitkit.fit(
        str(data),
        out=str(out),
        model=options.model,
        weights="none",
        image=(28, 28),
        channels=1,
        recipe="small_scratch",
        lr=0.003,
        augment={"crop": (0.6, 1.0), "randaugment": False, "mixup": 0.0},
        batch=options.batch,
        epochs=options.epochs,
        score_every=steps,
        seed=seed,
        device="cpu",
        workers=0,
        cache="ram",
        duplicates="ignore",
        **shuffle,
    )
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {"accuracy": [round(record["top1"], 4) for record in records if record["kind"] == "score"]}


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Return the page: accuracy along the run and at its end, and the difference to full shuffle of the same seed."""
    seeds = sorted({row["seed"] for row in rows})
    curves = {(row["arm"], row["seed"]): row["accuracy"] for row in rows}
    epochs = len(rows[0]["accuracy"])
    shown = sorted({1, 2, math.ceil(epochs / 2), epochs})
    full = next(iter(ARMS))
    lines = [
        "# Shuffling by shards beside a full shuffle",
        "",
        "`python benchmarks/shuffle.py` wrote this page from its runs (runs.jsonl): "
        f"{rows[0]['model']} from scratch on `fashion` (6,000 images, ten classes, {FILES} tar files), {epochs} epochs "
        f"of 94 steps of 64 images, {len(seeds)} seeds, validated on 1,000 images after each epoch. Figures are % "
        "top-1, means over the seeds; the difference is that of the last epoch to full shuffle with the same seed, "
        "with the 95 % interval of Student's t.",
        "",
        "| | " + " | ".join(f"epoch {epoch}" for epoch in shown) + " | difference | lowest epoch of the second half |",
        "| --- " * (len(shown) + 3) + "|",
    ]
    for arm in ARMS:
        table = 100 * np.array([curves[arm, seed] for seed in seeds])
        apart = table[:, -1] - 100 * np.array([curves[full, seed][-1] for seed in seeds])
        deviation = apart.std(ddof=1) if len(seeds) > 1 else math.nan
        half = T95.get(len(seeds), 2.0) * deviation / math.sqrt(len(seeds))
        difference = "" if arm == full else f"{apart.mean():+.1f} ± {half:.1f}"
        means = table.mean(axis=0)
        cells = [f"{means[epoch - 1]:.1f}" for epoch in shown]
        lowest = means[epochs // 2 :].min()
        lines.append(f"| {arm} | {' | '.join(cells)} | {difference} | {lowest:.1f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
