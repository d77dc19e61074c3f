"""Compare the speed of `--fast` with exact on this machine, engine by engine, and its effect on predictions.

    python benchmarks/fast.py [--model S/16] [--device cpu] [--threads 1] [--json]
    python benchmarks/fast.py --peers                        beside onnxruntime in int8 and OpenVINO, on a CPU
    python benchmarks/fast.py --run RUN --data DATA          accuracy of all engines on the scoring split

Exact and every other engine take turns in short rounds on the same random images; ratios to exact are medians of those
within a round, and ratios of the fastest rounds, so that a busy neighbour slows both sides alike. On a CPU, with one
thread, process time is counted, which includes any threads that a peer starts; wall-clock time otherwise. Weights are
random unless a run is named: speed does not depend on them, agreement does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from cpu_peers import cpu_peers
from torch import Tensor

import vitkit
from vitkit.data.evaluation_batches import evaluation_batches
from vitkit.data.sources.open import open_data
from vitkit.data.sources.splits import scoring_split
from vitkit.data.split_dataset import SplitDataset
from vitkit.evaluate.matching import match_classes
from vitkit.model.build import Model
from vitkit.predict.engines import Compute, engine_candidates
from vitkit.predict.fast import fastest_engine

EXACT, CHOSEN = "exact", "chosen by --fast"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="S/16")
    parser.add_argument(
        "--gelu",
        choices=("tanh", "exact"),
        default="tanh",
        help="torch computes tanh's so slowly on a CPU that it flatters the ratios: state both",
    )
    parser.add_argument("--run", help="instead of random weights")
    parser.add_argument("--data", help="with --run: accuracy instead of speed")
    parser.add_argument("--limit", type=int, help="images to score at most, spread over the split")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peers", action="store_true", help="other runtimes, on a CPU; OpenVINO if it is installed")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    classifier = vitkit.Classifier(options.run or untrained(options.model, options.gelu), device=options.device)
    started = time.perf_counter()
    chosen = fastest_engine(classifier.model, classifier.device, multilabel=classifier.multilabel)
    about = {
        "model": options.run or f"{options.model}, {options.gelu} GELU",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        EXACT: classifier.engine.description,
        CHOSEN: chosen.description,
        "choosing_seconds": time.perf_counter() - started,
    }
    if options.data:
        result = about | scores(classifier, chosen.logits, options.data, options.limit)
    else:
        result = about | {
            "batches": speeds(classifier, chosen.logits, options.batches, options.rounds, peers=options.peers)
        }
    print(json.dumps(result, indent=2) if options.json else as_text(result))


def untrained(name: str, gelu: str) -> Model:
    model = vitkit.create(name, **({} if name.startswith("R") and "+" not in name else {"gelu": gelu}))
    torch.nn.init.normal_(model.head.logits.weight, std=0.1)  # zeros would predict the same for every image
    return model


def speeds(
    classifier: vitkit.Classifier, chosen: Compute, batches: list[int], rounds: int, *, peers: bool
) -> dict[int, Any]:
    computes: dict[str, Compute] = {EXACT: classifier.engine.logits, CHOSEN: chosen}
    failed = {}
    for candidate in engine_candidates(classifier.model, classifier.device):
        try:
            computes[candidate.description] = candidate.build()
        except Exception as error:
            failed[candidate.description] = {"failed": f"{type(error).__name__}: {error}"}
    if peers:
        others, reasons = cpu_peers(classifier.model)
        computes |= others
        failed |= {name: {"failed": reason} for name, reason in reasons.items()}
    one_thread = classifier.device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if one_thread else time.perf_counter
    channels, image = classifier.model.config.channels, classifier.transform.image
    return {batch: measure(computes, torch.randn(batch, channels, *image), rounds, clock) | failed for batch in batches}


def measure(computes: dict[str, Compute], images: Tensor, rounds: int, clock: Callable[[], float]) -> dict[str, Any]:
    for compute in computes.values():
        compute(images)
        compute(images)
    times: dict[str, list[float]] = {name: [] for name in computes}
    for _ in range(rounds):
        for name, compute in computes.items():
            started = clock()
            compute(images).cpu()  # waits for a GPU
            times[name].append(clock() - started)
    return {
        name: {
            "ms": 1000 * statistics.median(own),
            "fastest_ms": 1000 * min(own),
            "times_exact": statistics.median(base / mine for base, mine in zip(times[EXACT], own, strict=True)),
            "times_exact_fastest": min(times[EXACT]) / min(own),
        }
        for name, own in times.items()
    }


def scores(classifier: vitkit.Classifier, chosen: Compute, source: str, limit: int | None) -> dict[str, Any]:
    """Return the accuracy of exact, of the chosen and of every other engine, and the share of exact's predictions."""
    data = match_classes(classifier.model, open_data(source)).data
    name = scoring_split(data)
    split = data.splits[name]
    if limit and limit < len(split):
        split = split.select(torch.linspace(0, len(split) - 1, limit).round().int().numpy())
    computes: dict[str, Compute] = {EXACT: classifier.engine.logits, CHOSEN: chosen}
    candidates = engine_candidates(classifier.model, classifier.device)
    computes |= {candidate.description: candidate.build() for candidate in candidates}
    dataset = SplitDataset(split=split, transform=classifier.transform, channels=classifier.model.config.channels)
    batches: dict[str, list[Tensor]] = {name: [] for name in computes}
    labels = []
    for batch in evaluation_batches(dataset, 8, workers=0):
        labels.append(batch.labels)
        for engine, compute in computes.items():
            batches[engine].append(compute(batch.images).softmax(dim=1).cpu())
    truth, probabilities = torch.cat(labels), {engine: torch.cat(rows) for engine, rows in batches.items()}
    return {
        "data": f"{source}, {name}",
        "images": len(truth),
        "scores": {
            engine: {
                "accuracy": 100 * (rows.argmax(1) == truth).double().mean().item(),
                "same_predictions": 100 * (rows.argmax(1) == probabilities[EXACT].argmax(1)).double().mean().item(),
                "largest_difference": (rows - probabilities[EXACT]).abs().max().item(),
            }
            for engine, rows in probabilities.items()
        },
    }


def as_text(result: dict[str, Any]) -> str:
    lines = [
        f"{result['model']}, torch {result['torch']}",
        result[EXACT],
        f"{result[CHOSEN]}  (chosen in {result['choosing_seconds']:.1f} s)",
    ]
    for batch, measured in result.get("batches", {}).items():
        lines.append(f"batch {batch}")
        lines += [
            f"  {name:<40} "
            + (
                row["failed"]
                if "failed" in row
                else f"{row['ms']:>8.1f} ms   {row['times_exact']:.2f} x exact "
                f"(fastest rounds {row['times_exact_fastest']:.2f})"
            )
            for name, row in measured.items()
        ]
    if "scores" in result:
        lines.append(f"{result['data']}: {result['images']:,} images")
        lines += [
            f"  {name:<40} {row['accuracy']:6.2f} %   same predictions {row['same_predictions']:.2f} %   probabilities "
            f"within {row['largest_difference']:.3f}"
            for name, row in result["scores"].items()
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
