"""Pictures per second, from a JPEG of 500 x 400 to 224 x 224: vitkit's way beside Pillow's, and torchvision's if there.

    python benchmarks/input.py [--folder PHOTOS] [--readers N] [--batch 256] [--seconds 2] [--json]

First on one core, in process time: whole chains, then the stages that training's consists of. The ways take turns in
short rounds on the same pictures; speeds are medians over the rounds, and so are the ratios to Pillow, each taken
within its round, so that a busy neighbour slows both sides alike. Then whole loaders, from files to batches in this
process, with N reader processes each (all cores, unless said), by the clock, in turn again: vitkit's own, and Pillow's
and torchvision's chains in torch's DataLoader, with the same random crops. On a GPU's machine batches end in pinned
memory. With a folder, real photos are re-saved at 500 x 400; without one, made-up ones serve.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from photos import photos, write
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitkit.data.boxes import draw_box
from vitkit.data.decode import decode
from vitkit.data.loader import Loader, Reader
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.sources.base import Split
from vitkit.data.sources.open import open_data
from vitkit.data.transforms import Exact, Fast, whole_pixels
from vitkit.devices import cores

SIDE, ROUNDS, PICTURES = 224, 60, 120
EACH_ROUND = 12  # pictures
TURNS = 3  # of the whole loaders
BASE = "Pillow, bilinear"
LOADER_BASE = "Pillow in torch's DataLoader"
AREA, ASPECT = (0.05, 1.0), (3 / 4, 4 / 3)
DRAWS = Fast.draw(0, 0, range(PICTURES))
Way = Callable[[int], object]  # with the number of a picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--readers", type=int, default=cores(), help="processes of each loader; all cores unless said")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each loader, in each of three turns")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pictures = photos(options.folder, PICTURES)
    with tempfile.TemporaryDirectory() as folder:
        paths = write(pictures, Path(folder), PICTURES)
        split = next(iter(open_data(folder).splits.values()))
        speeds, ratios = compare(chains(pictures), BASE)
        stage_speeds, _ = compare(stages(split, pictures), "reading the bytes")
        loaded, loaded_ratios = compare_loaders(
            loaders(split, paths, options.batch, options.readers), options.readers, options.seconds
        )
    bytes_each = round(statistics.mean(map(len, pictures)))
    if options.json:
        print(
            json.dumps(
                {
                    "pictures_per_second": speeds,
                    "ratio_to_pillow": ratios,
                    "stages_per_second": stage_speeds,
                    "loaders": {
                        "readers": options.readers,
                        "batch": options.batch,
                        "pictures_per_second": loaded,
                        "ratio_to_pillow": loaded_ratios,
                        "pinned": torch.cuda.is_available(),
                    },
                    "bytes_each": bytes_each,
                    "torch": torch.__version__,
                    "cores": cores(),
                    "machine": platform.processor() or platform.machine(),
                },
                indent=2,
            )
        )
        return
    print(f"{len(pictures)} JPEGs of 500 x 400, {bytes_each:,} bytes each, to {SIDE} x {SIDE}; one core")
    for name, speed in speeds.items():
        print(f"{name:<48} {speed:>7,.0f}/s   {ratios[name]:.2f} x Pillow")
    print("\nstages of training's chain, one core")
    together = sum(1 / speed for speed in stage_speeds.values())
    for name, speed in stage_speeds.items():
        print(f"{name:<48} {speed:>7,.0f}/s   {1 / speed / together:4.0%} of the time")
    print(f"{'one after the other':<48} {1 / together:>7,.0f}/s")
    print(f"\nwhole loaders, {options.readers} readers on {cores()} cores, batches of {options.batch}")
    for name, speed in loaded.items():
        print(f"{name:<48} {speed:>7,.0f}/s   {loaded_ratios[name]:.2f} x Pillow")


def chains(pictures: list[bytes]) -> dict[str, Way]:
    whole = Fast(image=(SIDE, SIDE), crop=None, flip=False, whole=Preprocessing(resize="squash"))
    cropped = Fast(image=(SIDE, SIDE))
    exact = Exact(image=(SIDE, SIDE), preprocessing=Preprocessing(resize="squash", interpolation="bilinear"))
    bicubic = Exact(image=(SIDE, SIDE), preprocessing=Preprocessing(resize="squash", interpolation="bicubic"))
    theirs: dict[str, Way] = {}
    if torchvision_works(pictures[0]):
        contents = [as_bytes(content) for content in pictures]
        theirs["torchvision, bilinear, random crop and flip"] = lambda n: torchvision_view(contents[n], DRAWS[n])
    return {
        BASE: lambda n: pillow(pictures[n], Image.Resampling.BILINEAR),
        "Pillow, bicubic": lambda n: pillow(pictures[n], Image.Resampling.BICUBIC),
        "Pillow, bilinear, random crop and flip": lambda n: pillow_view(io.BytesIO(pictures[n]), DRAWS[n]),
        **theirs,
        "vitkit: decode alone": lambda n: decode(pictures[n]),
        "vitkit: uint8, bilinear (training)": lambda n: whole(decode(pictures[n]), DRAWS[0]),
        "vitkit: uint8, random crop and flip (training)": lambda n: cropped(decode(pictures[n]), DRAWS[n]),
        "vitkit: float32, bilinear (exact)": lambda n: exact(decode(pictures[n])),
        "vitkit: float32, bicubic (exact)": lambda n: bicubic(decode(pictures[n])),
    }


def pillow(content: bytes, filter: Image.Resampling) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB").resize((SIDE, SIDE), filter))


def pillow_view(file: str | io.BytesIO, draws: Sequence[float]) -> np.ndarray:
    """What Fast makes of a picture, from the same draws."""
    picture = Image.open(file).convert("RGB")
    box = draw_box(draws[1:], (picture.height, picture.width), area=AREA, aspect=ASPECT)
    picture = picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box)
    return np.array(picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draws[0] < 0.5 else picture)


def stages(split: Split, pictures: list[bytes]) -> dict[str, Way]:
    cropped = Fast(image=(SIDE, SIDE))
    decoded = [decode(content) for content in pictures]
    ready = [cropped(pixels, draws) for pixels, draws in zip(decoded, DRAWS, strict=True)]
    batch = torch.empty(EACH_ROUND, 3, SIDE, SIDE, dtype=torch.uint8)
    return {
        "reading the bytes": split.read,
        "decoding": lambda n: decode(pictures[n]),
        "random crop, resize, flip": lambda n: cropped(decoded[n], DRAWS[n]),
        "collating": lambda n: batch[n % EACH_ROUND].copy_(ready[n]),
    }


def compare(ways: dict[str, Way], base: str) -> tuple[dict[str, float], dict[str, float]]:
    """Pictures per second, and how many times those of the base, for each way."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS):
        first = turn * EACH_ROUND % PICTURES
        for name, way in ways.items():
            started = time.process_time()
            for number in range(first, first + EACH_ROUND):
                way(number)
            times[name].append(time.process_time() - started)
    speeds = {name: EACH_ROUND / statistics.median(rounds) for name, rounds in times.items()}
    ratios = {
        name: statistics.median(one / own for one, own in zip(times[base], rounds, strict=True))
        for name, rounds in times.items()
    }
    return speeds, ratios


def loaders(split: Split, paths: list[Path], batch: int, readers: int) -> dict[str, Callable[[], Iterable[Any]]]:
    pin = torch.cuda.is_available()
    found: dict[str, Callable[[], Iterable[Any]]] = {
        LOADER_BASE: lambda: torch_loader(PillowChain(paths), batch, readers, pin)
    }
    if torchvision_works(paths[0].read_bytes()):
        found["torchvision in torch's DataLoader"] = lambda: torch_loader(TorchvisionChain(paths), batch, readers, pin)
    found["vitkit's Loader"] = lambda: Loader(
        Reader(split=split, transform=Fast(image=(SIDE, SIDE))), batch=batch, workers=readers, pin=pin
    )
    return found


class Chain(Dataset[Tensor]):
    """Pictures without end: the same files again and again."""

    def __init__(self, paths: Sequence[Path]):
        self.paths = [os.fspath(path) for path in paths]

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, number: int) -> Tensor:
        return self.read(self.paths[number % len(self.paths)], DRAWS[number % PICTURES])

    def read(self, path: str, draws: Sequence[float]) -> Tensor:
        raise NotImplementedError


class PillowChain(Chain):
    def read(self, path: str, draws: Sequence[float]) -> Tensor:
        return torch.from_numpy(pillow_view(path, draws)).permute(2, 0, 1)


class TorchvisionChain(Chain):
    def read(self, path: str, draws: Sequence[float]) -> Tensor:
        return torchvision_view(torch.from_file(path, size=os.path.getsize(path), dtype=torch.uint8), draws)


def torchvision_view(content: Tensor, draws: Sequence[float]) -> Tensor:
    """What Fast makes of a picture, from the same draws."""
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.v2 import functional as F

    picture = decode_jpeg(content, mode=ImageReadMode.RGB)  # (3, h, w) uint8
    box = draw_box(draws[1:], (picture.shape[1], picture.shape[2]), area=AREA, aspect=ASPECT)
    left, top, right, bottom = whole_pixels(box)
    picture = F.resized_crop(picture, top, left, bottom - top, right - left, [SIDE, SIDE], antialias=True)
    return F.horizontal_flip(picture) if draws[0] < 0.5 else picture


def torchvision_works(content: bytes) -> bool:
    """Not where it is not installed, or was built for another torch or without libjpeg."""
    try:
        return torchvision_view(as_bytes(content), DRAWS[0]).shape == (3, SIDE, SIDE)
    except (ImportError, RuntimeError, OSError):
        return False


def as_bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def torch_loader(chain: Chain, batch: int, readers: int, pin: bool) -> DataLoader[Tensor]:
    return DataLoader(
        chain,
        batch_size=batch,
        num_workers=readers,
        pin_memory=pin,
        multiprocessing_context="fork" if readers else None,
    )


def compare_loaders(
    made: dict[str, Callable[[], Iterable[Any]]], readers: int, seconds: float
) -> tuple[dict[str, float], dict[str, float]]:
    speeds: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(TURNS):
        for name, make in made.items():
            speeds[name].append(speed_of(make(), max(readers, 1), seconds))
    ratios = {
        name: statistics.median(own / base for own, base in zip(found, speeds[LOADER_BASE], strict=True))
        for name, found in speeds.items()
    }
    return {name: statistics.median(found) for name, found in speeds.items()}, ratios


def speed_of(batches: Iterable[Any], readers: int, seconds: float) -> float:
    """Pictures per second once every reader has delivered a batch, over whole rounds of the readers."""
    with closing(counts(batches)) as loaded:
        for _ in range(readers):
            next(loaded)
        started, pictures = time.perf_counter(), 0
        while (taken := time.perf_counter() - started) < seconds or not pictures:
            pictures += sum(itertools.islice(loaded, readers))
    return pictures / taken


def counts(batches: Iterable[Any]) -> Generator[int, None, None]:
    for batch in batches:
        yield len(batch if isinstance(batch, Tensor) else batch.images)


if __name__ == "__main__":
    main()
