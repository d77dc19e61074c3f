"""Print docs/transfer.md from the logs in this folder: python docs/transfer/table.py > docs/transfer.md."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).parent
SETS = {  # name: recipe, learning rate of the recipe, description
    "cifar20": ("small_transfer", 0.003, "20 classes of CIFAR-100, 50 images each, 32 px"),
    "pets": ("medium_transfer", 0.01, "Oxford-IIIT Pet, 37 breeds, 3,680 images, short side 160 px"),
    "fashion": ("medium_transfer", 0.01, "Fashion-MNIST as in the package, 10 classes, 6,000 images, grey, 28 px"),
    "tiny101": ("medium_transfer", 0.01, "101 classes of Tiny-ImageNet, 30 images each, 64 px"),
    "cifar100": ("large_transfer", 0.03, "CIFAR-100, 205 images of each class, 32 px"),
}
VARIANTS = {
    '{"start": "head, then full"}': "the head fitted first",
    '{"augment": {"crop": [0.08, 1]}}': "crops from 8 % of the area",
    '{"augment": {"crop": [0.5, 1]}}': "crops from 50 % of the area",
    '{"length": 2}': "twice as many epochs",
    '{"length": 0.25}': "a quarter of the epochs",
}

Rows = list[dict[str, Any]]


def read(name: str) -> Rows:
    return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


def near(one: float, other: float) -> bool:
    return abs(one / other - 1) < 0.15  # 0.00333 is a third of 0.01


def main() -> None:
    chosen, compared = read("validation.jsonl"), read("test.jsonl")
    print(
        "# How the default settings of fine-tuning were chosen\n\n"
        "`vitkit fit DATA` picks `small_transfer`, `medium_transfer` or `large_transfer` by the number of images. "
        "Their learning\nrates, lengths and crops were chosen on five datasets, on a fifth of the training images that "
        "was held out for validation;\nthe test images had no part in it. Model: the Ti/16 inside the package, at 224 "
        "px, on one NVIDIA H200 in bf16.\n`table.py` makes this page from the logs in [transfer/](transfer/); "
        "`benchmarks/transfer_sets.py` makes the data and\n`benchmarks/transfer_rates.py` the runs.\n"
    )
    print("| dataset | recipe | what it is |\n|---|---|---|")
    for name, (recipe, _, description) in SETS.items():
        print(f"| {name} | {recipe} | {description} |")
    choice(chosen)
    variants(chosen)
    comparison(compared)


def choice(rows: Rows) -> None:
    rates = (0.001, 0.003, 0.01, 0.03, 0.09)
    print("\n## Learning rates: top-1 on validation images, %\n")
    print("One run for each rate and seed; a cell is the mean of seeds 0 and 1, or of the one that was run. ", end="")
    print("Bold is the recipe's.\n")
    print("| dataset | " + " | ".join(f"{rate:g}" for rate in rates) + " |\n|---" * 1 + "|---" * len(rates) + "|")
    for name, (_, default, _) in SETS.items():
        cells = []
        for rate in rates:
            scores = [
                row["validation"] for row in rows if row["data"] == name and not row["set"] and near(row["lr"], rate)
            ]
            text = f"{100 * mean(scores):.1f}" if scores else "–"
            cells.append(f"**{text}**" if near(rate, default) else text)
        print(f"| {name} | " + " | ".join(cells) + " |")


def variants(rows: Rows) -> None:
    print("\n## What else was tried: points of validation top-1 over the recipe, same rate, seed 0\n")
    print("| dataset | " + " | ".join(VARIANTS.values()) + " |\n|---" + "|---" * len(VARIANTS) + "|")
    for name, (_, default, _) in SETS.items():
        scores = {
            json.dumps(row["set"]): row["validation"]
            for row in rows
            if row["data"] == name and row["seed"] == 0 and near(row["lr"], default)
        }
        cells = [f"{100 * (scores[key] - scores['{}']):+.1f}" if key in scores else "–" for key in VARIANTS]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print(
        "\nA fitted head to start from (linear probing, then fine-tuning) lost on three of four sets: the fitted head "
        "is confident\nfrom the first step, and the layers below it learn less. So fine-tuning starts from the paper's "
        "zero head, and a head\nfitted on frozen features is a result of its own (`start = head`)."
    )


def comparison(rows: Rows) -> None:
    print("\n## The default against the best of a sweep: top-1 on test images, %\n")
    print("Trained on all training images, three seeds; means over the seeds.\n")
    print("| dataset | a third of the rate | the default | three times the rate | best minus default |")
    print("|---|---|---|---|---|")
    lost = []
    for name in SETS:
        means = {
            factor: 100 * mean(row["test"] for row in rows if row["data"] == name and near(row["factor"], factor))
            for factor in (1 / 3, 1, 3)
        }
        lost.append(max(means.values()) - means[1])
        print(f"| {name} | {means[1 / 3]:.2f} | {means[1]:.2f} | {means[3]:.2f} | {lost[-1]:.2f} |")
    print(f"\nThe default loses {mean(lost):.2f} points on average and {max(lost):.2f} at most.")


if __name__ == "__main__":
    main()
