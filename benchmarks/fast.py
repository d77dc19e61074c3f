"""How much faster `--fast` is than exact on this machine, way by way, and what it does to the answers.

    python benchmarks/fast.py [--model S/16] [--device cpu] [--threads 1] [--json]
    python benchmarks/fast.py --run RUN --data DATA          accuracy of both on the scoring split

Exact and every way take turns in short rounds on the same random pictures; ratios to exact are medians of those within
a round, and ratios of the fastest rounds, so that a busy neighbour slows both sides alike. On a CPU, with one thread,
process time is counted; wall-clock time otherwise. Weights are random unless a run is named: speed does not depend on
them, agreement does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import vitkit
from vitkit.data.loader import Reader, evaluation_batches
from vitkit.data.sources.open import open_data
from vitkit.data.sources.splits import scoring_split
from vitkit.evaluate.matching import match
from vitkit.model.build import Model
from vitkit.predict.engines import ways
from vitkit.predict.fast import quicken

Compute = Callable[[Tensor], Tensor]
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
    parser.add_argument("--limit", type=int, help="pictures to score at most, spread over the split")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    classifier = vitkit.Classifier(options.run or untrained(options.model, options.gelu), device=options.device)
    started = time.perf_counter()
    chosen = quicken(classifier)
    about = {
        "model": options.run or f"{options.model}, {options.gelu} GELU",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        EXACT: classifier.engine.words,
        CHOSEN: chosen.words,
        "choosing_seconds": time.perf_counter() - started,
    }
    if options.data:
        result = about | scores(classifier, chosen.logits, options.data, options.limit)
    else:
        result = about | {"batches": speeds(classifier, chosen.logits, options.batches, options.rounds)}
    print(json.dumps(result, indent=2) if options.json else shown(result))


def untrained(name: str, gelu: str) -> Model:
    model = vitkit.create(name, **({} if name.startswith("R") and "+" not in name else {"gelu": gelu}))
    torch.nn.init.normal_(model.head.logits.weight, std=0.1)  # zeros would answer everything alike
    return model


def speeds(classifier: vitkit.Classifier, chosen: Compute, batches: list[int], rounds: int) -> dict[int, Any]:
    computes: dict[str, Compute] = {EXACT: classifier.engine.logits, CHOSEN: chosen}
    failed = {}
    for way in ways(classifier):
        try:
            computes[way.words] = way.build(classifier)
        except Exception as error:
            failed[way.words] = {"failed": f"{type(error).__name__}: {error}"}
    alone = classifier.device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    channels, image = classifier.model.config.channels, classifier.exact.image
    return {batch: measure(computes, torch.randn(batch, channels, *image), rounds, clock) | failed for batch in batches}


def measure(computes: dict[str, Compute], images: Tensor, rounds: int, clock: Callable[[], float]) -> dict[str, Any]:
    for compute in computes.values():
        compute(images)
        compute(images)
    times: dict[str, list[float]] = {name: [] for name in computes}
    for _ in range(rounds):
        for name, compute in computes.items():
            started = clock()
            compute(images)  # ends with the answers on the host
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
    """Accuracy of exact, of what was chosen and of every way; share of answers that are exact's."""
    data = match(classifier.model, open_data(source)).data
    name = scoring_split(data)
    split = data.splits[name]
    if limit and limit < len(split):
        split = split.select(torch.linspace(0, len(split) - 1, limit).round().int().numpy())
    computes: dict[str, Compute] = {EXACT: classifier.engine.logits, CHOSEN: chosen}
    computes |= {way.words: way.build(classifier) for way in ways(classifier)}
    reader = Reader(split=split, transform=classifier.exact, channels=classifier.model.config.channels)
    answers: dict[str, list[Tensor]] = {name: [] for name in computes}
    labels = []
    for batch in evaluation_batches(reader, 8, workers=0):
        labels.append(batch.labels)
        for way, compute in computes.items():
            answers[way].append(compute(batch.images).softmax(dim=1))
    truth, told = torch.cat(labels), {way: torch.cat(rows) for way, rows in answers.items()}
    return {
        "data": f"{source}, {name}",
        "pictures": len(truth),
        "scores": {
            way: {
                "accuracy": 100 * (rows.argmax(1) == truth).double().mean().item(),
                "same_answers": 100 * (rows.argmax(1) == told[EXACT].argmax(1)).double().mean().item(),
                "farthest_probability": (rows - told[EXACT]).abs().max().item(),
            }
            for way, rows in told.items()
        },
    }


def shown(result: dict[str, Any]) -> str:
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
                way["failed"]
                if "failed" in way
                else f"{way['ms']:>8.1f} ms   {way['times_exact']:.2f} x exact "
                f"(fastest rounds {way['times_exact_fastest']:.2f})"
            )
            for name, way in measured.items()
        ]
    if "scores" in result:
        lines.append(f"{result['data']}: {result['pictures']:,} pictures")
        lines += [
            f"  {name:<40} {way['accuracy']:6.2f} %   same answers {way['same_answers']:.2f} %   probabilities "
            f"within {way['farthest_probability']:.3f}"
            for name, way in result["scores"].items()
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
