"""Do bf16 and fp8 train and predict as fp32 does? The same run in each precision, with the same data and seeds.

    python benchmarks/numerics.py DATA [--weights PATH] [--steps 300] [--batch 512] [--seeds 2] [--fp8]
                                  [--optimizer adamw] [--keep FOLDER] [--json]

Losses of each step are compared between precisions, with the same seed, and between seeds, with the same precision: the
first difference should be well within the second. Then every trained model classifies DATA's test images in fp32, bf16
and fp8: accuracy, and the share of predictions that are those of fp32.
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
from vitkit.compute.fused_vit import reason_to_decline
from vitkit.compute.inference import Precision, for_inference
from vitkit.config.resolve import resolve
from vitkit.config.schema import SGD, AdamW
from vitkit.data.evaluation_batches import evaluation_batches
from vitkit.data.sources.open import open_data
from vitkit.data.sources.splits import scoring_split
from vitkit.data.split_dataset import SplitDataset
from vitkit.data.transforms import EvalTransform
from vitkit.devices import cores, describe_device, pick_device
from vitkit.evaluate.matching import match_classes
from vitkit.run_folder import RunFolder
from vitkit.train.distributed import process_group
from vitkit.train.trainer import train

Run = tuple[str, int]  # precision and seed
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
    parser.add_argument("--lr", type=float, help="default: 0.01 with SGD and 0.0001 with AdamW")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--fp8", action="store_true", help="also a run with fp8 forward products")
    parser.add_argument(
        "--compile", choices=("auto", "yes", "no"), default="yes", help="of the bf16 and fp8 runs, on a GPU"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the runs there")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.lr = options.lr or RATES[options.optimizer]
    device = pick_device(options.device)
    losses: dict[Run, list[float]] = {}
    scores: dict[Run, dict[str, Any]] = {}
    with nullcontext(options.keep) if options.keep else tempfile.TemporaryDirectory() as runs:
        # the first seed in all precisions first, so that an interrupted benchmark has what matters
        for seed, precision in itertools.product(range(options.seeds), ("fp32", "bf16", *(["fp8"] * options.fp8))):
            started = time.perf_counter()
            folder = Path(runs, f"{precision}-{seed}")
            losses[precision, seed] = trained(options, device, folder, precision, seed)
            scores[precision, seed] = evaluated(options.data, device, folder)
            if not options.json:
                print(
                    f"{precision}, seed {seed}: {time.perf_counter() - started:.0f} s, last losses "
                    f"{statistics.mean(losses[precision, seed][-20:]):.4f}; {describe(scores[precision, seed])}",
                    flush=True,
                )
    result = {
        "device": describe_device(device, torch.get_num_threads()),
        "torch": torch.__version__,
        "data": options.data,
        "steps": options.steps,
        "batch": options.batch,
        "lr": options.lr,
        "optimizer": options.optimizer,
        "differences": differences(losses),
        "scores": [{"trained_in": precision, "seed": seed, **score} for (precision, seed), score in scores.items()],
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for line in result["differences"]:
        print(f"{line['between']:<28} mean difference of losses {line['mean']:.5f}, largest {line['largest']:.4f}")


def trained(options: argparse.Namespace, device: torch.device, path: Path, precision: str, seed: int) -> list[float]:
    """Train as `vitkit fit` does and return the losses."""
    reduced = precision != "fp32"
    settings: dict[str, Any] = {
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
        "precision": "bf16" if reduced else "fp32",
        "fp8": precision == "fp8",
        "compile": options.compile if reduced and device.type == "cuda" else "no",
    }
    config, data, _ = resolve(settings)
    config = replace(config, optimizer=OPTIMIZERS[options.optimizer], epochs=None, choose_lr=False, dev=0.0, patience=0)
    with process_group(device) as processes, closing(RunFolder.create(path)) as folder:
        train(config, data, folder, processes, lambda name, text: None)
        return [line["loss"] for line in folder.metrics() if line["kind"] == "step"]


def evaluated(source: str, device: torch.device, folder: Path) -> dict[str, Any]:
    model = vitkit.load(folder).to(device).eval()
    data = match_classes(model, open_data(source)).data
    split = data.splits[scoring_split(data)]
    transform = EvalTransform(image=model.config.image, preprocessing=model.metadata.preprocessing)
    dataset = SplitDataset(split=split, transform=transform, channels=model.config.channels)
    precisions: tuple[Precision, ...] = (
        ("fp32", "bf16", "fp8") if reason_to_decline(model) is None else ("fp32", "bf16")
    )
    engines = {name: for_inference(model, name) for name in precisions}
    outputs: dict[str, list[Tensor]] = {name: [] for name in engines}
    labels = []
    with torch.inference_mode():
        for batch in evaluation_batches(dataset, 64, workers=max(cores() - 1, 1)):
            labels.append(batch.labels)
            for name, compute in engines.items():
                outputs[name].append(compute(batch.images.to(device)).cpu())
    truth = torch.cat(labels)
    logits = {name: torch.cat(rows) for name, rows in outputs.items()}
    first = logits["fp32"].argmax(1)
    return {
        "images": len(truth),
        "predicted_in": {
            name: {
                "accuracy": 100 * (rows.argmax(1) == truth).double().mean().item(),
                "same_predictions": 100 * (rows.argmax(1) == first).double().mean().item(),
                "farthest_probability": (rows.softmax(1) - logits["fp32"].softmax(1)).abs().max().item(),
            }
            for name, rows in logits.items()
        },
    }


def differences(losses: dict[Run, list[float]]) -> list[dict[str, Any]]:
    """Compare runs that differ in either the precision or the seed."""
    rows = []
    for one, other in itertools.combinations(losses, 2):
        if (one[0] == other[0]) != (one[1] == other[1]):
            steps = [abs(a - b) for a, b in zip(losses[one], losses[other], strict=True)]
            between = (
                f"{one[0]} and {other[0]}, seed {one[1]}"
                if one[1] == other[1]
                else (f"{one[0]}, seeds {one[1]} and {other[1]}")
            )
            rows.append({"between": between, "mean": statistics.mean(steps), "largest": max(steps)})
    return rows


def describe(scores: dict[str, Any]) -> str:
    return f"{scores['images']:,} images classified in " + "; ".join(
        f"{name} {one['accuracy']:.2f} %, {one['same_predictions']:.2f} % the same"
        for name, one in scores["predicted_in"].items()
    )


if __name__ == "__main__":
    main()
