"""Do fast numbers learn and answer as float32 does? The same run in each, the same data, the same seeds.

    python benchmarks/numerics.py DATA [--weights PATH] [--steps 300] [--batch 512] [--seeds 2] [--fp8]
                                  [--optimizer adamw] [--keep FOLDER] [--json]

Losses of each step are compared between numbers, with the same seed, and between seeds, with the same numbers: the
first is to be well within the second. Then every trained model answers DATA's test pictures in float32, bf16 and fp8.
Accuracy, and the share of answers that are those of float32.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vitkit
from vitkit.compute.fused_vit import applies
from vitkit.compute.inference import Numbers, ready
from vitkit.config.resolve import resolve
from vitkit.config.schema import SGD, AdamW
from vitkit.data.loader import Reader, evaluation_batches
from vitkit.data.sources.open import open_data
from vitkit.data.sources.splits import scoring_split
from vitkit.data.transforms import Exact
from vitkit.devices import cores, describe_device, pick_device
from vitkit.evaluate.matching import match
from vitkit.run_folder import RunFolder
from vitkit.train.distributed import joined
from vitkit.train.trainer import train

Run = tuple[str, int]  # numbers and seed
RATES = {"sgd": 1e-2, "adamw": 1e-4}
OPTIMIZERS = {"sgd": SGD(), "adamw": AdamW(weight_decay=0.1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--weights", default="none")
    parser.add_argument("--model", default="")
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, help="0.01 with SGD and 0.0001 with AdamW, unless said")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--fp8", action="store_true", help="a run with 8-bit products on the way forward, too")
    parser.add_argument("--compile", choices=("auto", "yes", "no"), default="yes", help="of the fast runs, on a GPU")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--keep", metavar="FOLDER", help="leaves the runs there")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.lr = options.lr or RATES[options.optimizer]
    device = pick_device(options.device)
    losses: dict[Run, list[float]] = {}
    scores: dict[Run, dict[str, Any]] = {}
    with nullcontext(options.keep) if options.keep else tempfile.TemporaryDirectory() as place:
        # the first seed of all numbers first: whoever stops it half-way has what matters
        for seed, numbers in itertools.product(range(options.seeds), ("fp32", "bf16", *(["fp8"] * options.fp8))):
            started = time.perf_counter()
            folder = Path(place, f"{numbers}-{seed}")
            losses[numbers, seed] = trained(options, device, folder, numbers, seed)
            scores[numbers, seed] = judged(options.data, device, folder)
            if not options.json:
                print(
                    f"{numbers}, seed {seed}: {time.perf_counter() - started:.0f} s, last losses "
                    f"{statistics.mean(losses[numbers, seed][-20:]):.4f}; {in_words(scores[numbers, seed])}",
                    flush=True,
                )
    found = {
        "device": describe_device(device, torch.get_num_threads()),
        "torch": torch.__version__,
        "data": options.data,
        "steps": options.steps,
        "batch": options.batch,
        "lr": options.lr,
        "optimizer": options.optimizer,
        "differences": differences(losses),
        "scores": [{"trained_in": numbers, "seed": seed, **told} for (numbers, seed), told in scores.items()],
    }
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for line in found["differences"]:
        print(f"{line['between']:<28} mean difference of losses {line['mean']:.5f}, largest {line['largest']:.4f}")


def trained(options: argparse.Namespace, device: torch.device, place: Path, numbers: str, seed: int) -> list[float]:
    """The losses of a run as `vitkit fit` makes it."""
    fast = numbers != "fp32"
    given: dict[str, Any] = {
        "data": options.data,
        "weights": options.weights,
        "model": options.model,
        "batch": options.batch,
        "steps": options.steps,
        "save_every": options.steps,
        "image": (options.image,) * 2,
        "device": options.device,
        "seed": seed,
        "lr": options.lr,
        "precision": "bf16" if fast else "fp32",
        "fp8": numbers == "fp8",
        "compile": options.compile if fast and device.type == "cuda" else "no",
    }
    config, data, _ = resolve(given)
    config = replace(config, optimizer=OPTIMIZERS[options.optimizer], epochs=None, choose_lr=False, dev=0.0, patience=0)
    with joined(device) as processes, closing(RunFolder.create(place)) as folder:
        train(config, data, folder, processes, lambda name, text: None)
        return [line["loss"] for line in folder.metrics() if line["kind"] == "step"]


def judged(source: str, device: torch.device, folder: Path) -> dict[str, Any]:
    model = vitkit.load(folder).to(device).eval()
    data = match(model, open_data(source)).data
    split = data.splits[scoring_split(data)]
    exact = Exact(image=model.config.image, preprocessing=model.metadata.preprocessing)
    reader = Reader(split=split, transform=exact, channels=model.config.channels)
    numbers: tuple[Numbers, ...] = ("fp32", "bf16", "fp8") if applies(model) else ("fp32", "bf16")
    ways = {name: ready(model, name) for name in numbers}
    answers: dict[str, list[Tensor]] = {name: [] for name in ways}
    labels = []
    with torch.inference_mode():
        for batch in evaluation_batches(reader, 64, workers=max(cores() - 1, 1)):
            labels.append(batch.labels)
            for name, compute in ways.items():
                answers[name].append(compute(batch.images.to(device)).cpu())
    truth = torch.cat(labels)
    told = {name: torch.cat(rows) for name, rows in answers.items()}
    first = told["fp32"].argmax(1)
    return {
        "pictures": len(truth),
        "answered_in": {
            name: {
                "accuracy": 100 * (rows.argmax(1) == truth).double().mean().item(),
                "same_answers": 100 * (rows.argmax(1) == first).double().mean().item(),
                "farthest_probability": (rows.softmax(1) - told["fp32"].softmax(1)).abs().max().item(),
            }
            for name, rows in told.items()
        },
    }


def differences(losses: dict[Run, list[float]]) -> list[dict[str, Any]]:
    """Of runs that differ in their numbers alone, or in their seeds alone."""
    found = []
    for one, other in itertools.combinations(losses, 2):
        if (one[0] == other[0]) != (one[1] == other[1]):
            steps = [abs(a - b) for a, b in zip(losses[one], losses[other], strict=True)]
            between = (
                f"{one[0]} and {other[0]}, seed {one[1]}"
                if one[1] == other[1]
                else (f"{one[0]}, seeds {one[1]} and {other[1]}")
            )
            found.append({"between": between, "mean": statistics.mean(steps), "largest": max(steps)})
    return found


def in_words(scores: dict[str, Any]) -> str:
    return f"{scores['pictures']:,} pictures answered in " + "; ".join(
        f"{name} {one['accuracy']:.2f} %, {one['same_answers']:.2f} % the same"
        for name, one in scores["answered_in"].items()
    )


if __name__ == "__main__":
    main()
