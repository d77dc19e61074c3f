"""Open shards of millions of images: seconds, memory of each process, time to the first batch.

    python benchmarks/index.py [--images 1000000 10000000] [--workers 2] [--before TREE] [--folder DIR] [--json]

The shards are synthetic: one tar file of real JPEGs, under as many names as the images need (hard links), with an index
of as many entries, each with a key, a label and the place of its image. A process of its own then does what `vitkit
fit` does before its first step:

    open       read the index: names, labels, splits and classes
    describe   count the images of classes, hash names and labels (the record of a run), divide into training and test
    contents   the record of the images' contents, by which a resumed run notices changes; reads images (where it reads
               all of them, 100,000 are read, and the time is scaled)
    first      start the data workers and load the first batch, the order of the epoch included
    each       the time from one batch to the next, over the following ones

The first three are CPU seconds of the process, the last two seconds on the clock.

Memory is what a set takes beyond one of 4,000 images, which is measured first: of the main process when the index is
open; and after the last batch, of a data worker alone (USS: pages that no other process has) and of all processes (the
sum of PSS, in which a page that several share counts once). Anonymous pages have to stay in memory; the rest are pages
of the index, which the system can drop and read again. `--before` names the source tree of another version, which opens
an index that is compressed, as it was until then; every row of the table is a process in the same run. The
extrapolation to 100 million is linear from the two largest sizes.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

PER_SHARD = 4000
CLASSES = 18_000
SIDE, BATCH, STEPS = 64, 256, 20
MIB = 2**20
KEY_DIGITS = 12
SCALED = 100_000
WALL = ("first", "each")  # parts that processes share; of the others, CPU seconds count, also on a busy machine
COLUMNS = ("open", "describe", "contents", "first", "each")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--before", type=Path, help="source tree of an earlier version, for comparison")
    parser.add_argument("--no-contents", action="store_true", help="leave out the record of the images' contents")
    parser.add_argument("--folder", type=Path, help="where the shards are written; default: a temporary folder")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)  # one folder, in a process of its own
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.measure, options.workers, contents=not options.no_contents)))
        return
    here = Path(__file__).resolve().parents[1]
    trees = {"now": here} if options.before is None else {"before": options.before.resolve(), "now": here}
    rows: list[dict[str, Any]] = []
    for name, tree in trees.items():
        for images in (PER_SHARD, *options.images):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                write_synthetic(Path(folder), images, mapped=name == "now")
                rows.append({"version": name, "images": images, **run(Path(folder), tree, options)})
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    rows = beyond_reference(rows)
    if options.json:
        print(json.dumps(rows))
        return
    print_tables(rows)


def beyond_reference(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with memory beyond that of the smallest set of the same version."""
    references = {row["version"]: row for row in rows if row["images"] == PER_SHARD}
    return [
        {**row, "mib": {name: row["mib"][name] - references[row["version"]]["mib"][name] for name in row["mib"]}}
        for row in rows
        if row["images"] > PER_SHARD
    ]


def run(folder: Path, tree: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure in a new process, which imports vitkit from that tree."""
    command = [sys.executable, __file__, "--measure", str(folder), "--workers", str(options.workers)]
    command += ["--no-contents"] * options.no_contents
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    size = (folder / "index.npz").stat().st_size
    return {**json.loads(done.stdout), "index": size / MIB}


def write_synthetic(folder: Path, images: int, *, mapped: bool) -> None:
    """Write shards of so many images in the splits train and test."""
    from vitkit.data.shard_writer import write_shards
    from vitkit.data.sources.dataset import Data, PackedStrings, Split

    random = np.random.default_rng(0)
    contents = [jpeg(random) for _ in range(64)]
    labels = np.arange(PER_SHARD) % CLASSES
    keys = PackedStrings(map(str, range(PER_SHARD)))
    split = Split(keys, labels, Repeated(contents), np.arange(PER_SHARD))
    names = tuple(f"class {number:05d}" for number in range(CLASSES))
    write_shards(Data("synthetic", "shards", names, {"train": split}, ()), folder / "one", megabytes=100_000)
    with np.load(folder / "one" / "index.npz") as arrays:
        one = {name.removeprefix("train."): array for name, array in arrays.items()}
    index = json.loads((folder / "one" / "index.json").read_text())
    splits, members = {}, {}
    for name, count in {"train": images - images // 100, "test": images // 100}.items():
        rows = np.arange(count)
        shards = [f"{name}-{number:06d}.tar" for number in range(-(-count // PER_SHARD))]
        for shard in shards:
            os.link(folder / "one" / "train-000000.tar", folder / shard)
        splits[name] = {
            "count": count,
            "shards": [{"name": shard, "bytes": index["splits"]["train"]["shards"][0]["bytes"]} for shard in shards],
        }
        text = key_text(name, rows)
        members |= {
            f"{name}.shard": rows // PER_SHARD,
            f"{name}.offset": one["offset"][rows % PER_SHARD],
            f"{name}.size": one["size"][rows % PER_SHARD],
            f"{name}.pixels": np.zeros(count, bool),
            f"{name}.labels": random.permutation(rows % CLASSES),
            f"{name}.key_text": text.reshape(-1),
            f"{name}.key_stops": (rows + 1) * text.shape[1],
        }
    for path in (folder / "one").iterdir():
        path.unlink()
    (folder / "one").rmdir()
    (np.savez if mapped else np.savez_compressed)(folder / "index.npz", **members)
    (folder / "index.json").write_text(json.dumps({**index, "splits": splits}))


def key_text(split: str, rows: np.ndarray) -> np.ndarray:
    """Return (n, length) the bytes of keys such as train/000000004711.jpg."""
    start, end = np.frombuffer(f"{split}/".encode(), np.uint8), np.frombuffer(b".jpg", np.uint8)
    text = np.empty((len(rows), len(start) + KEY_DIGITS + len(end)), np.uint8)
    text[:, : len(start)], text[:, -len(end) :] = start, end
    for digit in range(KEY_DIGITS):
        text[:, len(start) + digit] = rows // 10 ** (KEY_DIGITS - 1 - digit) % 10 + ord("0")
    return text


def jpeg(random: np.random.Generator) -> bytes:
    file = io.BytesIO()
    coarse = Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8))
    coarse.resize((SIDE, SIDE)).save(file, "JPEG", quality=80)
    return file.getvalue()


class Repeated:
    """A store that gives a few images again and again."""

    def __init__(self, contents: list[bytes]) -> None:
        self.contents = contents

    def read(self, row: int) -> bytes:
        return self.contents[row % len(self.contents)]


def measure(folder: Path, workers: int, *, contents: bool) -> dict[str, Any]:
    """Do what a run does before its first step, and measure each part."""
    import multiprocessing

    import torch.utils.data  # noqa: F401

    from vitkit.data.contents import Reading, contents_record
    from vitkit.data.groups import keep_together, record_of
    from vitkit.data.label_check import label_warnings
    from vitkit.data.loader import Loader
    from vitkit.data.partition import fingerprint, partition
    from vitkit.data.sources.open import open_data
    from vitkit.data.split_dataset import SplitDataset
    from vitkit.data.transforms import TrainTransform

    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        clock = time.monotonic if name in WALL else time.process_time
        began = clock()
        result = work()
        seconds[name] = clock() - began
        return result

    data = timed("open", lambda: open_data(folder))
    opened = memory(os.getpid())

    def describe() -> Any:
        kept = keep_together(data, duplicates="ignore")
        record_of(kept)
        for split in data.splits.values():
            split.per_class(len(data.classes))
        list(label_warnings(data))
        fingerprint(data, "train")
        return partition(kept.data)

    splits = timed("describe", describe)
    if contents:
        module = sys.modules["vitkit.data.contents"]
        pick = getattr(module, "pick_compared", lambda images, hashed: "sample")  # an earlier version reads all
        compared = pick(sum(map(len, data.splits.values())), hashed=False)
        train = data.splits["train"]
        part = train if compared == "few" else train.select(np.arange(min(SCALED, len(train))))
        some = replace(data, splits={"train": part})
        timed("contents", lambda: contents_record(some, ["train"], compared, Reading(workers)))
        seconds["contents"] *= len(train) / len(part)
    options: dict[str, Any] = {}
    if "order" in SplitDataset.__dataclass_fields__:  # an earlier version has none
        from vitkit.data.epoch_order import order_of, pick_shuffle

        shuffle = pick_shuffle("auto", len(splits.train), is_new=True)
        options["order"] = order_of(splits.train, shuffle, 0, 100_000)
    dataset = SplitDataset(split=splits.train, transform=TrainTransform(image=(SIDE, SIDE)), **options)
    batches = iter(Loader(dataset, batch_size=BATCH, workers=workers))
    timed("first", lambda: next(batches))
    timed("each", lambda: [next(batches) for _ in itertools.repeat(None, STEPS)])
    seconds["each"] /= STEPS
    children = [child.pid for child in multiprocessing.active_children() if child.pid]
    processes = [memory(pid) for pid in (os.getpid(), *children)]
    batches.close()
    return {
        "seconds": seconds,
        "mib": {
            "opened": opened["pss"],
            "opened, anonymous": opened["anonymous"],
            "a worker alone": max((process["private"] for process in processes[1:]), default=0.0),
            "all": sum(process["pss"] for process in processes),
            "all, anonymous": sum(process["pss anonymous"] for process in processes),
        },
    }


def memory(pid: int) -> dict[str, float]:
    """Return MiB of a process from /proc."""
    fields = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0]) / 1024
    return {
        "private": fields["Private_Clean"] + fields["Private_Dirty"],
        "pss": fields["Pss"],
        "anonymous": fields["Anonymous"],
        "pss anonymous": fields["Pss_Anon"],
    }


def print_tables(rows: list[dict[str, Any]]) -> None:
    print("| seconds | version | index, MiB | " + " | ".join(COLUMNS) + " |")
    print("| --- " * (3 + len(COLUMNS)) + "|")
    for row in [*rows, *extrapolated(rows)]:
        cells = [f"{row['seconds'][name]:.2f}" if name in row["seconds"] else "–" for name in COLUMNS]
        print(f"| {row['images']:,} | {row['version']} | {row['index']:,.0f} | " + " | ".join(cells) + " |")
    print("\n| MiB | version | " + " | ".join(rows[0]["mib"]) + " |")
    print("| --- " * (2 + len(rows[0]["mib"])) + "|")
    for row in [*rows, *extrapolated(rows)]:
        cells = [f"{max(value, 0):,.0f}" for value in row["mib"].values()]
        print(f"| {row['images']:,} | {row['version']} | " + " | ".join(cells) + " |")


def extrapolated(rows: list[dict[str, Any]], images: int = 100_000_000) -> list[dict[str, Any]]:
    """Return a row of each version for that many images, on the line through its two largest sizes."""
    result = []
    for version in dict.fromkeys(row["version"] for row in rows):
        own = sorted((row for row in rows if row["version"] == version), key=lambda row: row["images"])[-2:]
        if len(own) < 2:
            continue
        share = (images - own[1]["images"]) / (own[1]["images"] - own[0]["images"])
        line = {"version": f"{version}, extrapolated", "images": images}
        line["index"] = own[1]["index"] + share * (own[1]["index"] - own[0]["index"])
        for part in ("seconds", "mib"):
            line[part] = {
                # what is read of very many images does not grow
                name: max(value + share * (value - own[0][part][name]), value)
                for name, value in own[1][part].items()
                if name in own[0][part]
            }
        result.append(line)
    return result


if __name__ == "__main__":
    main()
