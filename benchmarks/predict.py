"""Do `predict` and `embed` run at the machine's speed? Files to rows, beside the decoders alone and the model alone.

    python benchmarks/predict.py [--models Ti/16 B/16] [--engines exact bf16 "fp8 matrices"] [--images 20000]
                                 [--side 224] [--folder PHOTOS] [--device auto] [--workers N] [--peers] [--json]

For each model and engine, in one run: JPEGs of --side pixels are predicted into a .jsonl file as `vitkit predict --out`
does it (`predict`), decoded by the same workers without a model (`decoders`), and computed without decoding, as one
batch that is on the device already, repeated (`model`). The share is that of the smaller of the two; on a CPU, where
decoders and model take the same cores, it says little. Rates are steady ones: they count from the end of the first
fifth of the batches on, when the workers have started. `host` is what the main process itself computes for an image,
its waiting and the device's work left out, beside a model of one block. --peers adds transformers' pipeline and, where
timm can be imported, the loop of its inference script. Engines that this machine cannot run are left out and named.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import photos
import torch

import vitkit
from vitkit.compute.pipeline import PART, lent_parts
from vitkit.data.evaluation_batches import sequential_batches
from vitkit.data.sources.image_paths import find_image_names, unlabelled_split
from vitkit.data.split_dataset import SplitDataset
from vitkit.devices import cores, describe_device, pick_device
from vitkit.predict.engines import Engine, engine_candidates, exact_engine
from vitkit.predict.image_stream import workers_for
from vitkit.predict.stream import predict_into

DIFFERENT = 120  # distinct photos; the rest are copies under other names
WARM_UP = 0.2  # share of the batches before the clock counts
MODEL_SECONDS = 3.0
CLASSES = 1000
PEER_IMAGES = 4_000  # of which peers get at most so many: a pipeline that reads files in one thread takes minutes


@dataclass
class Clock:
    """The moments at which batches ended, on the wall and in the main thread."""

    ends: list[tuple[float, float, int]] = field(  # wall seconds, seconds of the main thread, images so far
        default_factory=lambda: [(time.perf_counter(), time.thread_time(), 0)]
    )

    def end(self, images: int) -> None:
        self.ends.append((time.perf_counter(), time.thread_time(), self.ends[-1][2] + images))

    def rates(self) -> tuple[float, float]:
        """Return images per second and seconds of the main thread per image, after the first batches."""
        first, last = self.ends[int(WARM_UP * (len(self.ends) - 1))], self.ends[-1]
        images = last[2] - first[2]
        return images / (last[0] - first[0]), (last[1] - first[1]) / images

    def progress(
        self, items: Iterable[Any], total: int, what: str, images_in: Callable[[Any], int] = len
    ) -> Iterator[Any]:
        for item in items:
            yield item
            self.end(images_in(item))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["Ti/16", "B/16"])
    parser.add_argument("--engines", nargs="+", help="default: exact and whatever --fast would try on this machine")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--side", type=int, default=224, help="of the JPEGs, in pixels")
    parser.add_argument("--folder", type=Path, help="of photos, instead of synthetic ones")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, help="data workers; default: as many as vitkit predict takes")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device = pick_device(options.device)
    with tempfile.TemporaryDirectory() as folder:
        write_photos(options.folder, options.side, options.images, Path(folder, "photos"))
        started = time.perf_counter()
        paths = find_image_names([Path(folder, "photos")])
        listing = time.perf_counter() - started
        workers = workers_for(len(paths), options.workers, device)
        result: dict[str, Any] = {
            "images": len(paths),
            "side": options.side,
            "listing_seconds": listing,
            "workers": workers,
            "cores": cores(),
            "device": describe_device(device, torch.get_num_threads()),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "host_microseconds": host_microseconds(paths, workers),
            "rows": [],
        }
        show(result, options.json)
        for name in options.models:
            for row in measure_model(name, options.engines, paths, Path(folder), device, workers):
                result["rows"].append(row)
                show_row(row, options.json)
            for row in peers(name, paths, device, workers) if options.peers else ():
                result["rows"].append(row)
                show_row(row, options.json)
    if options.json:
        print(json.dumps(result, indent=2))


def write_photos(folder: Path | None, side: int, count: int, into: Path) -> None:
    photos.SIZE = (side, side)
    photos.write(photos.photos(folder, min(DIFFERENT, count)), into, count)


def untrained(name: str, **settings: Any) -> vitkit.Classifier:
    torch.manual_seed(0)
    model = vitkit.create(name, classes=CLASSES, **settings).eval()
    torch.nn.init.normal_(model.head.logits.weight, std=0.1)  # zeros would predict the same for every image
    return vitkit.Classifier(model)


def host_microseconds(paths: list[str], workers: int) -> dict[str, float]:
    """Return what the main process computes for an image on the CPU, and what of it a GPU would compute: the model of
    one block, the probabilities and the most likely classes."""
    classifier = untrained("mu/16", image=32, depth=1)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        predict_into(Path(folder, "rows.jsonl"), classifier, paths, top=5, workers=workers, progress=clock.progress)
    images = torch.randn(classifier.engine.batch, 3, 32, 32)
    compute, times = classifier.answers_task(5).compute, []
    for _ in range(20):
        started = time.thread_time()
        compute(images)
        times.append(time.thread_time() - started)
    return {"all": 1e6 * clock.rates()[1], "model": 1e6 * statistics.median(times) / len(images)}


def measure_model(
    name: str, wanted: list[str] | None, paths: list[str], folder: Path, device: torch.device, workers: int
) -> Iterator[dict[str, Any]]:
    classifier = vitkit.Classifier(untrained(name).model, device=str(device))
    builders: dict[str, Callable[[], Engine]] = {"exact": lambda: exact_engine(classifier.model, device)}
    for candidate in engine_candidates(classifier.model, device):
        builders[candidate.description] = lambda built=candidate: replace(classifier.engine, logits=built.build())
    decoders = decode_rate(classifier, paths, workers)
    for engine in wanted or builders:
        row: dict[str, Any] = {"what": "vitkit", "model": name, "engine": engine}
        if engine not in builders:
            yield row | {"left_out": f"not for this machine, which has {', '.join(builders)}"}
            continue
        try:
            classifier.engine = builders[engine]()
        except Exception as error:
            yield row | {"left_out": f"{type(error).__name__}: {error}"}
            continue
        alone = model_rate(classifier, device)
        clock, out, started = Clock(), folder / "rows.jsonl", time.perf_counter()
        predict_into(out, classifier, paths, top=5, workers=workers, overwrite=True, progress=clock.progress)
        whole = time.perf_counter() - started
        steady = clock.rates()[0]
        yield row | {
            "batch": classifier.engine.batch,
            "predict": steady,
            "decoders": decoders,
            "model_alone": alone,
            "share": steady / min(decoders, alone),
            "whole_seconds": whole,
        }


def decode_rate(classifier: vitkit.Classifier, paths: list[str], workers: int) -> float:
    """Return images per second that the workers hand over, in the parts and the memory that prediction takes."""
    dataset = SplitDataset(split=unlabelled_split(paths), transform=classifier.transform)
    batch = classifier.engine.batch
    parts = sequential_batches(
        dataset,
        batch,
        workers=workers,
        pin_memory=classifier.device.type == "cuda",
        part=PART,
        lend=lent_parts(batch),
    )
    clock = Clock()
    for part in parts:
        clock.end(part.images_read())
    return clock.rates()[0]


def model_rate(classifier: vitkit.Classifier, device: torch.device) -> float:
    images = torch.randn(classifier.engine.batch, 3, *classifier.transform.image, device=device)
    classifier.engine.logits(images).cpu()
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < MODEL_SECONDS:
        for _ in range(8):
            logits = classifier.engine.logits(images)
            done += len(images)
            if device.type == "cpu":
                break
        logits.cpu()
    return done / (time.perf_counter() - started)


def peers(name: str, paths: list[str], device: torch.device, workers: int) -> Iterator[dict[str, Any]]:
    for what, measure in (("transformers pipeline", transformers_rate), ("timm inference script", timm_rate)):
        row = {"what": what, "model": name, "engine": "bf16" if device.type == "cuda" else "float32"}
        try:
            yield row | {"predict": measure(name, paths[:PEER_IMAGES], device, workers)}
        except Exception as error:
            yield row | {"left_out": f"{type(error).__name__}: {error}".splitlines()[0]}


def transformers_rate(name: str, paths: list[str], device: torch.device, workers: int) -> float:
    """Return the rate of the image-classification pipeline over files, as its documentation uses it."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor, pipeline

    ours = untrained(name).model.config
    config = ViTConfig(
        hidden_size=ours.width,
        num_hidden_layers=ours.depth,
        num_attention_heads=ours.heads,
        intermediate_size=ours.mlp,
        num_labels=CLASSES,
    )
    classify = pipeline(
        "image-classification",
        model=ViTForImageClassification(config).eval(),
        image_processor=ViTImageProcessor(),
        device=device,
        dtype=torch.bfloat16 if device.type == "cuda" else torch.float32,
    )
    clock, batch = Clock(), PART

    def files() -> Iterator[str]:
        yield from paths

    for number, _ in enumerate(classify(files(), batch_size=batch, num_workers=workers, top_k=5), 1):
        if number % batch == 0:
            clock.end(batch)
    return clock.rates()[0]


def timm_rate(name: str, paths: list[str], device: torch.device, workers: int) -> float:
    """Return the rate of the loop of timm's inference.py: its data set, its loader, softmax and the first five."""
    import timm
    from timm.data import create_dataset, create_loader, resolve_model_data_config

    names = {"Ti/16": "vit_tiny_patch16_224", "S/16": "vit_small_patch16_224", "B/16": "vit_base_patch16_224"}
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = timm.create_model(names[name], num_classes=CLASSES).eval().to(device=device, dtype=dtype)
    config = resolve_model_data_config(model)
    batch = 256 if device.type == "cuda" else PART
    loader = create_loader(
        create_dataset(root=str(Path(paths[0]).parents[1]), name=""),
        batch_size=batch,
        use_prefetcher=True,
        num_workers=workers,
        device=device,
        img_dtype=dtype,
        **config,
    )
    clock, rows = Clock(), []
    with torch.inference_mode():
        for images, _ in loader:
            probabilities = model(images).softmax(-1)
            best, classes = probabilities.topk(5)
            rows.append((best.float().cpu().numpy(), classes.cpu().numpy()))
            clock.end(len(images))
    return clock.rates()[0]


def show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        return
    host = result["host_microseconds"]
    print(
        f"{result['images']:,} JPEGs of {result['side']} px, listed in {result['listing_seconds']:.2f} s; "
        f"{result['device']}; {result['workers']} data workers on {result['cores']} cores; torch {result['torch']}\n"
        f"the main process, without the device's work: {host['all'] - host['model']:.1f} microseconds an image "
        f"({host['all']:.1f} with that of a model of one block at 32 px)",
        flush=True,
    )


def show_row(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        return
    start = f"{row['what']:<22} {row['model']:<6} {row['engine']:<22}"
    if "left_out" in row:
        print(f"{start} left out: {row['left_out']}", flush=True)
    elif "share" not in row:
        print(f"{start} {row['predict']:>9,.1f} images/s", flush=True)
    else:
        print(
            f"{start} {row['predict']:>9,.1f} images/s   decoders {row['decoders']:>9,.1f}   model "
            f"{row['model_alone']:>9,.1f}   share {row['share']:.2f}   batch {row['batch']}, "
            f"{row['whole_seconds']:.1f} s in all",
            flush=True,
        )


if __name__ == "__main__":
    main()
