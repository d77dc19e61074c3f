"""Learning rates of the default recipes over several datasets: what does the default lose against the best rate?

Every dataset, start and rate is one training run; the score of its last step on the validation images (held out from
the training split) and on the test images goes to a line of JSON. Rates are chosen by validation scores alone; test
scores only say how well that went. One process makes all runs of its part, so start-up is paid once; several processes
share a GPU.

python benchmarks/transfer_rates.py --weights ti16 DATA … --out rates.jsonl --factors 0.3 1 3 --seeds 0 1 2
"""

import argparse
import itertools
import json
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def arms(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return every combination of data, factor of the recipe's learning rate, seed and variant."""
    grid = itertools.product(options.data, options.variant or [{}], options.factors, options.seeds)
    return [
        {"data": data, "set": variant, "factor": factor, "seed": seed, "dev": options.dev}
        for data, variant, factor, seed in grid
    ]


def run(arm: dict[str, Any], weights: str, workers: int) -> dict[str, Any]:
    from dataclasses import replace

    from vitkit.compute.split_logits import collect_logits
    from vitkit.config.resolve import resolve
    from vitkit.devices import pick_device
    from vitkit.run_folder import RunFolder
    from vitkit.train.distributed import process_group
    from vitkit.train.loop import Diverged
    from vitkit.train.trainer import train
    from vitkit.weights.load import load

    began = time.monotonic()
    settings = {"data": arm["data"], "weights": weights, "seed": arm["seed"], "workers": workers, "start": "full"}
    settings |= {name: value for name, value in arm["set"].items() if name != "length"}
    config, data, _ = resolve(settings | ({"dev": arm["dev"]} if arm["dev"] else {}))
    arm = {**arm, "recipe": config.recipe, "lr": config.lr * arm["factor"]}
    # one score at the end, no checkpoint before it
    config = replace(
        config,
        lr=arm["lr"],
        epochs=(config.epochs or 0) * arm["set"].get("length", 1),
        score_every=10**9,
        save_every=10**9,
    )
    device = pick_device("auto")
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder(Path(scratch))
        with process_group(device) as processes:
            try:
                splits = train(config, data, folder, processes, lambda label, text: None)
            except Diverged:
                return {**arm, "validation": 0.0, "test": 0.0, "seconds": time.monotonic() - began}
            finally:
                folder.close()
        trained, model = time.monotonic() - began, load(scratch).to(device)
        scores = {}
        for name, split in (("validation", splits.validation), ("test", splits.test)):
            if split is not None and (name == "test" or arm["dev"]):
                result = collect_logits(model, split, device=device, precision="bf16", batch=256, workers=workers)
                scores[name] = float((result.logits.argmax(1) == result.labels).double().mean())
    return {**arm, **scores, "trained": round(trained, 1), "seconds": round(time.monotonic() - began, 1)}


def work(jobs: Any, results: Any, weights: str, workers: int) -> None:
    while (arm := jobs.get()) is not None:
        try:
            results.put(run(arm, weights, workers))
        except Exception as error:
            results.put({**arm, "error": f"{type(error).__name__}: {error}"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", nargs="+")
    parser.add_argument("--weights", default="ti16")
    parser.add_argument("--factors", type=float, nargs="+", default=[0.3, 1.0, 3.0], help="of the recipe's rate")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--variant", type=json.loads, action="append", help='settings as JSON; {"length": 2} is twice the epochs'
    )
    parser.add_argument("--dev", type=float, default=0.0, help="share of the training images held out for validation")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1e9, help="no run starts later than this")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    jobs, results = context.Queue(), context.Queue()
    todo, began, running = arms(options), time.monotonic(), 0
    workers = [
        context.Process(target=work, args=(jobs, results, options.weights, options.workers))
        for _ in range(options.processes)
    ]
    for worker in workers:
        worker.start()
    with options.out.open("a") as out:
        pending = iter(todo)
        for arm in itertools.islice(pending, options.processes):
            jobs.put(arm)
            running += 1
        while running:
            result = results.get()
            running -= 1
            print(json.dumps(result), file=out, flush=True)
            print(f"{time.monotonic() - began:6.1f} s  {json.dumps(result)}", flush=True)
            if time.monotonic() - began < options.seconds and (arm := next(pending, None)) is not None:
                jobs.put(arm)
                running += 1
    for _ in workers:
        jobs.put(None)
    for worker in workers:
        worker.join(timeout=10)
        worker.terminate()


if __name__ == "__main__":
    sys.exit(main())
