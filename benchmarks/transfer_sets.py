"""Make the three small datasets of benchmarks/transfer_rates.py from CIFAR-100 and Tiny-ImageNet-200.

python benchmarks/transfer_sets.py CIFAR100 TINY OUT
CIFAR100 has train/CLASS/*.png and test/CLASS/*.png; TINY is tiny-imagenet-200 as it comes.
"""

import random
import shutil
import sys
from pathlib import Path


def main(cifar: Path, tiny: Path, out: Path) -> None:
    draw = random.Random(18)
    classes = sorted(folder.name for folder in (cifar / "train").iterdir())

    def copy(files: list[Path], folder: Path) -> None:
        folder.mkdir(parents=True)
        for file in files:
            shutil.copy(file, folder)

    for name, chosen, counts in (
        ("cifar20", draw.sample(classes, 20), {"train": 50, "test": 100}),
        ("cifar100", classes, {"train": 205, "test": 50}),
    ):
        for label in chosen:
            for split, count in counts.items():
                copy(draw.sample(sorted((cifar / split / label).iterdir()), count), out / name / split / label)
    validation: dict[str, list[Path]] = {}
    for line in (tiny / "val" / "val_annotations.txt").read_text().splitlines():
        file, label = line.split("\t")[:2]
        validation.setdefault(label, []).append(tiny / "val" / "images" / file)
    for label in draw.sample(sorted(validation), 101):
        images = sorted((tiny / "train" / label / "images").glob("*.JPEG"))
        copy(draw.sample(images, 30), out / "tiny101" / "train" / label)
        copy(validation[label], out / "tiny101" / "test" / label)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
