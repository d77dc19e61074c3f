"""vitkit compared with timm, transformers and torchvision, if installed: training, inference, latency.

    python benchmarks/gpu.py [--cases train-B infer] [--peers timm] [--json FILE] [--page FILE] [--minutes 9]
    python benchmarks/gpu.py --from a.json b.json --page docs/gpu.md       a page from earlier runs
    python benchmarks/gpu.py --device cpu --cases tiny                     everything at a small scale

Within a case all contenders are prepared first, then they take turns in rounds on the same shapes, so that clocks, heat
and neighbours are the same for all; those that do not fit into memory together run after the others. A failure is a row
that says why. The JSON is written after every case: an interrupted run keeps its results.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import gpu_peers
import torch
from gpu_page import best_peer, images_per_second, model_name, page, speed_ratio
from torch import nn

from vitkit import VitkitError, __version__
from vitkit.atomic import write_text
from vitkit.bench.ceiling import Ceiling, measure_ceiling
from vitkit.bench.timing import Prepared, Result, Work, empty_cache, out_of_memory, prepare, release, time_calls
from vitkit.bench.work import What, flops, inference_call, training_step, untrained_model
from vitkit.compute.inference import supported_precisions
from vitkit.devices import describe_device, pick_device
from vitkit.kernels.fuse import fuse
from vitkit.model.config import ViTConfig
from vitkit.model.variants import configure
from vitkit.train.mixed_precision import use_fp8

ROUNDS = 4  # turns of each contender, with a share of the steps
WARMUPS = 5
LATENCY_FACTOR = 8  # times as many calls where images come one at a time
MODES = ("eager", "compiled")


@dataclass(frozen=True)
class Case:
    what: What
    model: str
    batch: int
    image: int = 224
    peers: tuple[str, ...] = tuple(gpu_peers.PEERS)
    like: str = ""  # a family in FAMILIES, whose options the model has

    def options(self, gelu: str) -> dict[str, Any]:
        return {"gelu": gelu, **FAMILIES[self.like]}


FAMILIES: dict[str, dict[str, Any]] = {
    "": {},
    "DINOv3": {
        "positions": "none",
        "rotary": "centred",
        "registers": 4,
        "layer_scale": 1e-5,
        "query_bias": False,
        "key_bias": False,
        "value_bias": False,
        "gelu": "exact",
        "eps": 1e-5,
    },
}

CASES = {
    "train-B": Case("training", "B/16", 256),
    "train-L": Case("training", "L/16", 128),
    "infer-B": Case("inference", "B/16", 512),
    "infer-L": Case("inference", "L/16", 256),
    "latency-B": Case("latency", "B/16", 1),
    "train-H": Case("training", "H/14", 64, peers=("timm",)),
    "train-384": Case("training", "B/16", 64, 384, peers=("timm",)),
    "train-32px": Case("training", "Ti/4", 1024, 32, peers=("timm",)),
    "dinov3-train-B": Case("training", "B/16", 256, peers=("timm",), like="DINOv3"),
    "dinov3-infer-B": Case("inference", "B/16", 512, peers=("timm",), like="DINOv3"),
    "tiny-train": Case("training", "mu/4", 4, 32),
    "tiny-infer": Case("inference", "mu/4", 4, 32),
    "tiny-latency": Case("latency", "mu/4", 1, 32),
}


@dataclass(frozen=True)
class Contender:
    library: str
    setup: str
    compiled: bool
    model: Callable[[], nn.Module]
    work: Callable[[Any], Work]


def main() -> None:
    options = arguments()
    results = [json.loads(path.read_text()) for path in options.earlier] if options.earlier else [run(options)]
    if options.page:
        write_text(options.page, page(results))
    elif options.earlier:
        print(page(results), end="")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases", nargs="+", metavar="NAME", help=f"names or prefixes: {', '.join(CASES)}; default: all but tiny"
    )
    parser.add_argument("--peers", nargs="*", choices=tuple(gpu_peers.PEERS), help="default: all that are installed")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument(
        "--compiled",
        nargs="*",
        choices=tuple(gpu_peers.PEERS),
        default=tuple(gpu_peers.PEERS),
        help="peers to compile, which takes half a minute each; default: all",
    )
    parser.add_argument(
        "--fast-norm",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="timm's own option, compiled, in training",
    )
    parser.add_argument("--fp8", action="store_true", help="also vitkit's training with fp8 forward products")
    parser.add_argument(
        "--gelu",
        choices=("tanh", "exact"),
        default="tanh",
        help="of all libraries: the paper's code has tanh, most other weights exact",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=40,
        help="timed steps of each contender, a fourth in each turn; the first ones of a turn vary, so use many",
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no new case is started")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE")
    parser.add_argument(
        "--from", type=Path, nargs="+", metavar="FILE", dest="earlier", help="JSON files of earlier runs"
    )
    options = parser.parse_args()
    starts = tuple(options.cases or {name.partition("-")[0] for name in CASES} - {"tiny"})
    if unknown := [start for start in starts if not any(name.startswith(start) for name in CASES)]:
        parser.error(f"--cases {unknown[0]}: choose from {', '.join(CASES)}")
    options.cases = [name for name in CASES if name.startswith(starts)]
    return options


def run(options: argparse.Namespace) -> dict[str, Any]:
    started = time.monotonic()
    device = pick_device(options.device)
    torch.backends.cudnn.benchmark = True  # as timm's scripts do; the other libraries embed patches with a convolution
    libraries = {
        name: version
        for name, version in gpu_peers.available().items()
        if options.peers is None or name in options.peers
    }
    ceiling = measure_ceiling(device, "bf16" if device.type == "cuda" else "fp32")
    result: dict[str, Any] = {"about": about(device, libraries, ceiling, options.gelu), "cases": []}
    print(
        f"{result['about']['device']}, torch {torch.__version__}, {libraries}; ceiling {ceiling.description}",
        flush=True,
    )
    for name in options.cases:
        if time.monotonic() - started > 60 * options.minutes:
            print(f"{name}: not started, {options.minutes:g} minutes are over", flush=True)
            continue
        case = CASES[name]
        rows = measure(case, list(contenders(case, libraries, options, device)), device, ceiling, options.steps)
        result["cases"].append({"case": name, **asdict(case), "rows": rows})
        show(result["cases"][-1])
        if options.json:
            write_text(options.json, json.dumps(result, indent=2))
    return result


def about(device: torch.device, libraries: dict[str, str], ceiling: Ceiling, gelu: str) -> dict[str, Any]:
    return {
        "date": datetime.now().date().isoformat(),
        "device": describe_device(device, torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "vitkit": __version__,
        "libraries": libraries,
        "gelu": gelu,
        "ceiling": {"precision": ceiling.precision, "side": ceiling.side, "flops_per_second": ceiling.flops},
        "command": " ".join(["python", *sys.argv]),
    }


def contenders(
    case: Case, libraries: dict[str, str], options: argparse.Namespace, device: torch.device
) -> Iterator[Contender]:
    """Yield vitkit and its peers, each eager and compiled.

    vitkit's inference uses hand-written kernels, with nothing to compile. For single images, vitkit replays a CUDA
    graph; peers do so where they are compiled.
    """
    config = configure(case.model, image=case.image, **case.options(options.gelu))
    assert isinstance(config, ViTConfig)
    latency, batch = case.what == "latency", case.batch

    def ours(fp8: bool = False) -> nn.Module:
        model = untrained_model(case.model, image=case.image, **case.options(options.gelu))
        if fp8:
            fuse(model)
            use_fp8(model, device, "bf16")
        return model

    own = [(mode, fp8) for mode in options.modes for fp8 in (False, True)[: 1 + options.fp8]]
    for mode, fp8 in own if case.what == "training" else ():
        yield Contender(
            "vitkit",
            mode + ", fp8 forward" * fp8,
            mode == "compiled",
            partial(ours, fp8),
            lambda model, compiled=mode == "compiled": training_step(
                model, device, "bf16", batch=batch, compiled=compiled
            ),
        )
    for precision in ("bf16", "fp8") if case.what != "training" else ():
        if precision == "bf16" or precision in supported_precisions(device):
            graph = latency and device.type == "cuda"
            yield Contender(
                "vitkit",
                precision + ", graph" * graph,
                False,
                ours,
                lambda model, precision=precision, graph=graph: inference_call(
                    model, device, precision, batch=batch, compiled=False, graph=graph
                ),
            )
    theirs = gpu_peers.training_step if case.what == "training" else gpu_peers.inference_call
    for library in (name for name in libraries if name in case.peers):
        modes = [mode for mode in options.modes if mode == "eager" or library in options.compiled]
        for mode in modes:

            def work(model: nn.Module, compiled: bool = mode == "compiled") -> Work:
                return theirs(model, config, device, batch=batch, compiled=compiled)

            build = gpu_peers.PEERS[library]
            yield Contender(
                library,
                mode + ", graph" * (latency and mode == "compiled"),
                mode == "compiled",
                lambda build=build: build(config),
                work,
            )
            if library == "timm" and case.what == "training" and options.fast_norm and mode == "compiled":
                yield Contender(
                    library,
                    f"{mode}, fast norm",
                    mode == "compiled",
                    lambda: gpu_peers.timm(config, fast_norm=True),
                    work,
                )


def measure(
    case: Case, waiting: list[Contender], device: torch.device, ceiling: Ceiling, steps: int
) -> list[dict[str, Any]]:
    """Measure all contenders that fit into memory together in turns, then the rest without them."""
    results: dict[Contender, Result | str] = {}
    later = waiting
    while later:
        prepared: dict[Contender, Prepared] = {}
        now, later = later, []
        for contender in now:
            failure, memory_error = "", False
            try:
                prepared[contender] = prepare_contender(contender, device)
            except Exception as error:  # whatever libraries, compilers and drivers raise
                failure, memory_error = describe(error), out_of_memory(error)
            if failure:  # outside of the except clause, which keeps the error and its memory alive
                print(f"  {contender.library}, {contender.setup}: {failure}", file=sys.stderr, flush=True)
                empty_cache(device)
            if memory_error and prepared:
                later.append(contender)
            elif failure:
                results[contender] = failure
        results |= take_turns(case, prepared, device, steps)
        prepared.clear()
        release(device)
    return [
        {
            "library": contender.library,
            "how": contender.setup,
            **(
                {"failed": one}
                if isinstance(one := results[contender], str)
                else one.record(ceiling.flops) | {"each_milliseconds": [round(1000 * time, 3) for time in one.times]}
            ),
        }
        for contender in waiting
    ]


def prepare_contender(contender: Contender, device: torch.device) -> Prepared:
    torch.manual_seed(0)
    work = prepare(contender.model, contender.work, device, warmups=WARMUPS)
    print(
        f"  {contender.library}, {contender.setup}: prepared in {work.first_seconds:.1f} s", file=sys.stderr, flush=True
    )
    return work


def take_turns(
    case: Case, prepared: dict[Contender, Prepared], device: torch.device, steps: int
) -> dict[Contender, Result | str]:
    latency = case.what == "latency"
    share = math.ceil(steps * (LATENCY_FACTOR if latency else 1) / ROUNDS)
    times: dict[Contender, list[float]] = {contender: [] for contender in prepared}
    failed: dict[Contender, str] = {}
    for _ in range(ROUNDS):
        for contender, one in prepared.items():
            if contender in failed:
                continue
            try:
                one.work()  # refills the caches
                times[contender] += time_calls(one.work, device, share, synchronous=latency)
            except Exception as error:
                failed[contender] = describe(error)
    per_image = flops(configure(case.model, image=case.image, **case.options("tanh")), case.what)
    return {
        contender: failed.get(contender)
        or Result(
            batch=case.batch,
            flops=per_image,
            times=tuple(times[contender]),
            compiled=contender.compiled,
            first_seconds=one.first_seconds,
            peak_bytes=one.peak_bytes,
        )
        for contender, one in prepared.items()
    }


def describe(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{': ' * bool(lines)}{''.join(lines[:1])[:200]}"


def show(case: dict[str, Any]) -> None:
    print(f"\n{case['case']}: {case['what']}, {model_name(case)} at {case['image']} px, batch {case['batch']}")
    best = best_peer(case)
    for row in case["rows"]:
        name = f"  {row['library']:<12} {row['how']:<22}"
        if "failed" in row:
            print(f"{name} failed: {row['failed']}", flush=True)
            continue
        times, peak, compiling = speed_ratio(row, best), row["peak_bytes"], row["compile_seconds"]
        print(
            f"{name} {images_per_second(row):>10,.1f} images/s {row['milliseconds']:>9.2f} ms"
            + (f"  x {times:.3f}" if times is not None else "")
            + f"  of ceiling {row['share_of_ceiling']:.3f}"
            + (f"  {peak / 2**30:.1f} GiB" if peak is not None else "")
            + (f"  compiled in {compiling:.0f} s" if compiling is not None else ""),
            flush=True,
        )


if __name__ == "__main__":
    try:
        main()
    except VitkitError as error:
        sys.exit(f"benchmarks/gpu.py: {error}")
