"""Make the data sets of `vitkit paper --scale small` from their published folders, small enough to be copied anywhere.

    python benchmarks/claims_data.py OUT [--tiny-imagenet tiny-imagenet-200] [--cifar100 FOLDER] [--pets FOLDER]
                                         [--side 384] [--quality 65] [--processes 2]

tiny-imagenet-200 is as published; cifar100 has train/CLASS/*.png and test/CLASS/*.png; pets has images/NAME.jpg and
annotations/ with trainval.txt, test.txt and trimaps/NAME.png. OUT gets a .zip for each, with split and class folders
inside, and trimaps.zip: `vitkit paper 1,6 --scale small --data OUT`. Images are written as WebP, for a tar or zip file
of 64-pixel JPEGs is half overhead; those of Pets are resized to `--side` pixels on the shorter side, their trimaps to
the same size by nearest neighbour. Scores are then those of re-encoded images, which a page has to say.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from PIL import Image

CIFAR_QUALITY = 90  # 32 pixels leave less to lose
Job = tuple[Path, str]  # a file, and its name in the zip file, without the ending


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tiny-imagenet", type=Path, metavar="FOLDER")
    parser.add_argument("--cifar100", type=Path, metavar="FOLDER")
    parser.add_argument("--pets", type=Path, metavar="FOLDER")
    parser.add_argument("--side", type=int, default=384, help="of Pets: pixels of the shorter side, at most")
    parser.add_argument("--quality", type=int, default=65)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with multiprocessing.Pool(options.processes) as pool:
        if options.tiny_imagenet:
            jobs = list(tiny_imagenet(options.tiny_imagenet))
            write(pool, options.out / "tiny-imagenet.zip", jobs, partial(webp, quality=options.quality))
        if options.cifar100:
            jobs = [(file, "/".join((*file.parts[-3:-1], file.stem))) for file in options.cifar100.glob("*/*/*.png")]
            write(pool, options.out / "cifar100.zip", jobs, partial(webp, quality=CIFAR_QUALITY))
        if options.pets:
            jobs = list(pets(options.pets))
            resized = partial(webp, quality=options.quality, side=options.side)
            write(pool, options.out / "pets.zip", jobs, resized)
            outlines = [(options.pets / "annotations/trimaps" / f"{file.stem}.png", file.stem) for file, _ in jobs]
            write(pool, options.out / "trimaps.zip", outlines, partial(trimap, side=options.side), "png")


def tiny_imagenet(folder: Path) -> Iterator[Job]:
    for file in folder.glob("train/*/images/*.JPEG"):
        yield file, f"train/{file.parts[-3]}/{file.stem.rpartition('_')[2]}"
    for line in (folder / "val/val_annotations.txt").read_text().splitlines():
        name, label = line.split("\t")[:2]
        yield folder / "val/images" / name, f"val/{label}/{Path(name).stem.rpartition('_')[2]}"


def pets(folder: Path) -> Iterator[Job]:
    for split in ("trainval", "test"):
        for line in (folder / f"annotations/{split}.txt").read_text().splitlines():
            name = line.split()[0]
            yield folder / "images" / f"{name}.jpg", f"{split}/{name.rpartition('_')[0]}/{name}"


def webp(job: Job, *, quality: int, side: int | None = None) -> bytes:
    with Image.open(job[0]) as image:
        pixels = resized(image.convert("RGB"), side, Image.Resampling.LANCZOS)
    file = io.BytesIO()
    pixels.save(file, "WEBP", quality=quality, method=6)
    return file.getvalue()


def trimap(job: Job, *, side: int) -> bytes:
    with Image.open(job[0]) as image:
        pixels = resized(image.copy(), side, Image.Resampling.NEAREST)  # grey levels or palette indices stay
    file = io.BytesIO()
    pixels.save(file, "PNG", optimize=True)
    return file.getvalue()


def resized(image: Image.Image, side: int | None, filter_: Image.Resampling) -> Image.Image:
    """Return the image with its shorter side at most `side` pixels long."""
    shorter = min(image.size)
    if side is None or shorter <= side:
        return image
    width, height = (max(round(length * side / shorter), side) for length in image.size)
    return image.resize((width, height), filter_)


def write(pool, path: Path, jobs: list[Job], encode, ending: str = "webp") -> None:  # type: ignore[no-untyped-def]
    """Write a zip file of the encoded images, in the order of their names."""
    jobs.sort(key=lambda job: job[1])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for (_, name), content in zip(jobs, pool.imap(encode, jobs, chunksize=64), strict=True):
            archive.writestr(zipfile.ZipInfo(f"{name}.{ending}"), content)
    print(f"{path}: {len(jobs):,} images, {path.stat().st_size / 2**20:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
