"""Fuzz the decoders: damaged images of every format, through the server's path and through that of the command line.

    python benchmarks/fuzz_decoders.py [--images 20000] [--first 0] [--seconds 600] [--keep FOLDER] [--json]

Image number n is a function of n alone: a small file of some format with bytes flipped, removed, repeated, cut off,
mixed with another format's, or with whole numbers of its header replaced by extreme ones. Each goes through what the
server does with an upload, what `Classifier` and `vitkit predict` do with a file, and what `vitkit check` and `fit` do
to find copies. Only a DecodeError may come out, and where the server has pixels, the command line must have the same
ones, and no more than the server has counted. What breaks a rule is listed with its number, and written to --keep.
Pixels are limited to a million, so that an image takes milliseconds.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
import torch
from PIL import Image, features

from vitkit.data.decode import decode
from vitkit.data.fingerprint import thumbnail
from vitkit.data.image_info import read_image_info
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.transforms import EvalTransform
from vitkit.errors import DecodeError
from vitkit.serve.decode_upload import UNSTATED_LIMIT, decode_upload
from vitkit.serve.pixel_count import stated_pixels

PIXELS = 1_000_000
EXTREMES = (0, 1, 2, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
HEADER = 128  # bytes in which every second change takes place
TRANSFORM = EvalTransform(image=(32, 32), preprocessing=Preprocessing())


@dataclass
class Totals:
    images: int = 0
    decoded_by_server: int = 0
    decoded_by_command_line: int = 0
    seconds: float = 0.0
    seeds: dict[str, int] = field(default_factory=Counter)
    uncaught: list[dict[str, Any]] = field(default_factory=list)
    different: list[dict[str, Any]] = field(default_factory=list)


def seed_images() -> dict[str, bytes]:
    """Return a small valid file of each format and of its variants that take other paths through a decoder."""
    y, x = np.mgrid[:14, :20]
    colour = np.stack([12 * x, 18 * y, 6 * (x + y)], axis=-1).astype(np.uint8)
    deep = (colour[:, :, 0].astype(np.uint16)) * 257
    image, grey = Image.fromarray(colour), Image.fromarray(colour[:, :, 0])
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "description"
    seeds = {
        "JPEG": _encoded(image, "JPEG"),
        "JPEG progressive": _encoded(image, "JPEG", progressive=True),
        "JPEG with Exif": _encoded(image, "JPEG", exif=exif),
        "JPEG CMYK": _encoded(image.convert("CMYK"), "JPEG"),
        "PNG": _encoded(image, "PNG", exif=exif),
        "PNG palette": _encoded(image.quantize(8), "PNG", transparency=0),
        "PNG 16 bits": _encoded(Image.fromarray(deep), "PNG"),
        "GIF": _encoded(image, "GIF", save_all=True, append_images=[image.rotate(90)]),
        "BMP": _encoded(image, "BMP"),
        "BMP palette": _encoded(image.quantize(8), "BMP"),
        "PPM": _encoded(image, "PPM"),
        "PPM 16 bits": b"P5 4 3 65535\n" + bytes(range(24)),
        "PPM plain": b"P3 2 2 255\n" + b"1 2 3 4 5 6 7 8 9 10 11 12\n",
        "TIFF": _encoded(image, "TIFF"),
        "TIFF big endian": _tiff(deep, byteorder=">"),
        "TIFF 16 bits": _encoded(Image.fromarray(deep), "TIFF"),
        "BigTIFF": _tiff(colour, bigtiff=True),
        "TIFF four bands": _tiff(np.dstack([colour, colour[:, :, 0]]), photometric="minisblack"),
        "TIFF floats": _tiff(colour.astype(np.float32) / 255),
        "TIFF deflated floats": _tiff(colour.astype(np.float32) / 255, compression="zlib"),
        "TIFF tiled": _tiff(colour, tile=(16, 16)),
        "ICO": _encoded(image, "ICO", sizes=[(16, 14)]),
        "TGA": _encoded(grey, "TGA"),
        "npy": _npy(colour),
        "npy floats": _npy(colour.astype(np.float32) / 255),
    }
    for compression in ("tiff_lzw", "jpeg", "tiff_adobe_deflate", "packbits", "group4"):
        source = grey.convert("1") if compression == "group4" else image
        seeds[f"TIFF {compression}"] = _encoded(source, "TIFF", compression=compression)
    for feature, format in (("webp", "WEBP"), ("jpg_2000", "JPEG2000"), ("avif", "AVIF")):
        if features.check(feature):
            seeds[format] = _encoded(image, format)
    if "WEBP" in seeds:
        seeds["WEBP lossless"] = _encoded(image.convert("RGBA"), "WEBP", lossless=True, exif=exif)
    heic = Path(__file__).parents[1] / "tests/fixtures/scene.heic"
    if heic.exists():
        seeds["HEIC"] = heic.read_bytes()
    return seeds


def _encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def _tiff(pixels: np.ndarray, bigtiff: bool = False, byteorder: Any = "<", **options: Any) -> bytes:
    file = io.BytesIO()
    with tifffile.TiffWriter(file, bigtiff=bigtiff, byteorder=byteorder) as writer:
        writer.write(pixels, metadata=None, **options)
    return file.getvalue()


def _npy(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, pixels)
    return file.getvalue()


def damaged(number: int, seeds: dict[str, bytes]) -> tuple[str, bytes]:
    """Return the name of a seed and a damaged copy of it, both determined by the number."""
    rng = np.random.default_rng(number)
    names = list(seeds)
    name = names[rng.integers(len(names))]
    content = bytearray(seeds[name])
    for _ in range(rng.integers(1, 6)):
        if not content:
            break
        reach = len(content) if rng.random() < 0.5 else min(HEADER, len(content))
        where = int(rng.integers(reach))
        length = int(rng.integers(1, 40))
        kind = rng.integers(7)
        if kind == 0:
            content[where] = rng.integers(256)
        elif kind == 1:
            content[where] ^= 1 << int(rng.integers(8))
        elif kind == 2:
            size = int(rng.choice((1, 2, 4, 8)))
            value = EXTREMES[rng.integers(len(EXTREMES))] % (1 << 8 * size)
            content[where : where + size] = value.to_bytes(size, "little" if rng.random() < 0.5 else "big")
        elif kind == 3:
            del content[where : where + length]
        elif kind == 4:
            content[where:where] = content[where : where + length]
        elif kind == 5:
            other = seeds[names[rng.integers(len(names))]]
            content[where : where + length] = other[where : where + length]
        elif rng.random() < 0.3:
            del content[where:]
    return name, bytes(content)


def attempt(path: Callable[[], Any]) -> tuple[Any, DecodeError | None]:
    """Return what the path returns, or its DecodeError; any other exception passes."""
    try:
        return path(), None
    except DecodeError as error:
        return None, error


def fuzz(numbers: Iterator[int], seconds: float, keep: Path | None = None) -> Totals:
    totals, seeds, started = Totals(), seed_images(), time.monotonic()
    for number in numbers:
        if time.monotonic() - started > seconds:
            break
        name, content = damaged(number, seeds)
        channels = (3, 3, 3, 1, 4)[number % 5]
        totals.images += 1
        totals.seeds[name] += 1
        try:
            problem = _compare(content, channels, totals)
        except Exception as error:
            *_, last = traceback.extract_tb(error.__traceback__)
            where = f"{Path(last.filename).name}:{last.lineno}"
            totals.uncaught.append({"number": number, "seed": name, "error": repr(error)[:200], "where": where})
        else:
            if problem is None:
                continue
            totals.different.append({"number": number, "seed": name, "difference": problem})
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{number}.bin").write_bytes(content)
    totals.seconds = time.monotonic() - started
    return totals


def _compare(content: bytes, channels: int, totals: Totals) -> str | None:
    """Send an image down every path, and describe how the server's answer differs from the command line's, if it does.

    The server accepts fewer formats, so an image that only the command line reads is no difference.
    """
    stated = stated_pixels(content) or UNSTATED_LIMIT
    ours, _ = attempt(lambda: decode_upload(content, channels=channels, pixel_limit=PIXELS))
    theirs, reason = attempt(lambda: decode(content, channels=channels, pixel_limit=PIXELS))
    totals.decoded_by_server += ours is not None
    totals.decoded_by_command_line += theirs is not None
    if ours is not None:
        image = TRANSFORM(ours)
        if not torch.isfinite(image).all():
            return "the server's input to the model is not finite"
        if stated < ours.shape[0] * ours.shape[1]:
            return f"{ours.shape[0]} x {ours.shape[1]} pixels, of which the server's budget counts {stated}"
    if reason is None or "over the limit" not in str(reason):  # these two have a limit of their own, 200 times as high
        read_image_info(content, channels)
        thumbnail(content)
    if ours is not None and theirs is None:
        return f"decoded by the server only: {reason}"
    if ours is not None and not (ours.dtype == theirs.dtype and np.array_equal(ours, theirs)):
        return "other pixels"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first image")
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after so long")
    parser.add_argument("--keep", type=Path, help="folder for the images that break a rule")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)  # tifffile logs each damaged tag
    torch.set_num_threads(1)
    totals = fuzz(iter(range(options.first, options.first + options.images)), options.seconds, options.keep)
    if options.json:
        print(json.dumps({**asdict(totals), "seeds": len(totals.seeds)}))
        return
    print(f"images     {totals.images:,} from number {options.first:,} on, {len(totals.seeds)} seeds")
    print(f"time       {totals.seconds:.0f} s")
    print(
        f"decoded    {totals.decoded_by_server:,} by the server, {totals.decoded_by_command_line:,} on the command line"
    )
    for name, rows in (("uncaught", totals.uncaught), ("different", totals.different)):
        print(f"{name:<10} {len(rows):,}")
        for row in rows[:20]:
            print("           " + ", ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
