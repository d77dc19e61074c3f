"""vitkit beside timm, transformers and torchvision, those that are installed: training, inference, latency.

    python benchmarks/gpu.py [--cases train-B infer] [--peers timm] [--json FILE] [--page FILE] [--minutes 9]
    python benchmarks/gpu.py --from a.json b.json --page docs/gpu.md       a page from earlier runs
    python benchmarks/gpu.py --device cpu --cases tiny                     the whole of it in small

Within a case everybody is made ready first, then they take turns in rounds on the same shapes, so that clocks, heat and
neighbours are the same for all; whoever does not fit into memory beside the others runs after them. What fails is a row
that says why. The JSON is written after every case: a run that is cut off keeps what it has.
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
from gpu_page import best_peer, page, ratio
from torch import nn

from vitkit import VitkitError, __version__
from vitkit.atomic import write_text
from vitkit.bench.ceiling import Ceiling, measure_ceiling
from vitkit.bench.timing import Ready, Result, Work, free, out_of_memory, prepare, release, timed
from vitkit.bench.work import What, answering, flops, training, untrained
from vitkit.compute.inference import numbers_here
from vitkit.devices import describe_device, pick_device
from vitkit.model.config import ViTConfig
from vitkit.model.variants import configure
from vitkit.train.eight_bits import multiply_8_bits

ROUNDS = 4  # turns of everybody, with a part of the steps in each
WARMUPS = 5
ANSWERS = 8  # times as many of them, where one picture is asked about at a time
WAYS = ("eager", "compiled")


@dataclass(frozen=True)
class Case:
    what: What
    model: str
    batch: int
    image: int = 224
    peers: tuple[str, ...] = tuple(gpu_peers.PEERS)


CASES = {
    "train-B": Case("training", "B/16", 256),
    "train-L": Case("training", "L/16", 128),
    "infer-B": Case("inference", "B/16", 512),
    "infer-L": Case("inference", "L/16", 256),
    "latency-B": Case("latency", "B/16", 1),
    "train-H": Case("training", "H/14", 64, peers=("timm",)),
    "train-384": Case("training", "B/16", 64, 384, peers=("timm",)),
    "train-32px": Case("training", "Ti/4", 1024, 32, peers=("timm",)),
    "tiny-train": Case("training", "mu/4", 4, 32),
    "tiny-infer": Case("inference", "mu/4", 4, 32),
    "tiny-latency": Case("latency", "mu/4", 1, 32),
}


@dataclass(frozen=True)
class Contender:
    library: str
    how: str
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
        "--cases", nargs="+", metavar="NAME", help=f"or how names begin: {', '.join(CASES)}; all but tiny unless said"
    )
    parser.add_argument("--peers", nargs="*", choices=tuple(gpu_peers.PEERS), help="all that are installed unless said")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument(
        "--compiled",
        nargs="*",
        choices=tuple(gpu_peers.PEERS),
        default=tuple(gpu_peers.PEERS),
        help="peers worth compiling, which takes half a minute each; all unless said",
    )
    parser.add_argument(
        "--fast-norm",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="timm's own option, compiled, in training",
    )
    parser.add_argument(
        "--fp8", action="store_true", help="vitkit's training with 8-bit products on the way forward, too"
    )
    parser.add_argument(
        "--gelu",
        choices=("tanh", "exact"),
        default="tanh",
        help="everybody's: the paper's code has tanh, most other weights exact",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=40,
        help="that are timed of each, a fourth in each turn; those "
        "that a turn begins with swing, so a turn is to be long",
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no new case is begun")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE")
    parser.add_argument("--from", type=Path, nargs="+", metavar="FILE", dest="earlier", help="of earlier --json")
    options = parser.parse_args()
    starts = tuple(options.cases or {name.partition("-")[0] for name in CASES} - {"tiny"})
    if unknown := [start for start in starts if not any(name.startswith(start) for name in CASES)]:
        parser.error(f"--cases {unknown[0]}: choose from {', '.join(CASES)}")
    options.cases = [name for name in CASES if name.startswith(starts)]
    return options


def run(options: argparse.Namespace) -> dict[str, Any]:
    started = time.monotonic()
    device = pick_device(options.device)
    torch.backends.cudnn.benchmark = True  # as timm's scripts set it; the others cut patches by convolution
    libraries = {
        name: version
        for name, version in gpu_peers.available().items()
        if options.peers is None or name in options.peers
    }
    ceiling = measure_ceiling(device, "bf16" if device.type == "cuda" else "fp32")
    result: dict[str, Any] = {"about": about(device, libraries, ceiling, options.gelu), "cases": []}
    print(f"{result['about']['device']}, torch {torch.__version__}, {libraries}; ceiling {ceiling.words}", flush=True)
    for name in options.cases:
        if time.monotonic() - started > 60 * options.minutes:
            print(f"{name}: not begun, {options.minutes:g} minutes are over", flush=True)
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
        "ceiling": {"numbers": ceiling.numbers, "side": ceiling.side, "flops_per_second": ceiling.flops},
        "command": " ".join(["python", *sys.argv]),
    }


def contenders(
    case: Case, libraries: dict[str, str], options: argparse.Namespace, device: torch.device
) -> Iterator[Contender]:
    """vitkit and its peers, eager and compiled each; vitkit's answers are laid out by hand, and there is nothing to
    compile. One answer at a time: vitkit's graph beside the others' eager, and their graphs where they are compiled."""
    config = configure(case.model, image=case.image, gelu=options.gelu)
    assert isinstance(config, ViTConfig)
    latency, batch = case.what == "latency", case.batch

    def ours(fp8: bool = False) -> nn.Module:
        model = untrained(case.model, image=case.image, gelu=options.gelu)
        if fp8:
            multiply_8_bits(model, device, "bf16")
        return model

    own = [(way, fp8) for way in options.ways for fp8 in (False, True)[: 1 + options.fp8]]
    for way, fp8 in own if case.what == "training" else ():
        yield Contender(
            "vitkit",
            way + ", fp8 forward" * fp8,
            way == "compiled",
            partial(ours, fp8),
            lambda model, compiled=way == "compiled": training(model, device, "bf16", batch=batch, compiled=compiled),
        )
    for numbers in ("bf16", "fp8") if case.what != "training" else ():
        if numbers == "bf16" or numbers in numbers_here(device):
            graph = latency and device.type == "cuda"
            yield Contender(
                "vitkit",
                numbers + ", graph" * graph,
                False,
                ours,
                lambda model, numbers=numbers, graph=graph: answering(
                    model, device, numbers, batch=batch, compiled=False, graph=graph
                ),
            )
    theirs = gpu_peers.training if case.what == "training" else gpu_peers.answering
    for library in (name for name in libraries if name in case.peers):
        ways = [way for way in options.ways if way == "eager" or library in options.compiled]
        for way in ways:

            def work(model: nn.Module, compiled: bool = way == "compiled") -> Work:
                return theirs(model, config, device, batch=batch, compiled=compiled)

            build = gpu_peers.PEERS[library]
            yield Contender(
                library,
                way + ", graph" * (latency and way == "compiled"),
                way == "compiled",
                lambda build=build: build(config),
                work,
            )
            if library == "timm" and case.what == "training" and options.fast_norm and way == "compiled":
                yield Contender(
                    library,
                    f"{way}, fast norm",
                    way == "compiled",
                    lambda: gpu_peers.timm(config, fast_norm=True),
                    work,
                )


def measure(
    case: Case, waiting: list[Contender], device: torch.device, ceiling: Ceiling, steps: int
) -> list[dict[str, Any]]:
    """All that fit into memory together take turns; then, without them, the rest."""
    found: dict[Contender, Result | str] = {}
    later = waiting
    while later:
        held: dict[Contender, Ready] = {}
        now, later = later, []
        for contender in now:
            failure, no_room = "", False
            try:
                held[contender] = made_ready(contender, device)
            except Exception as error:  # whatever libraries, compilers and drivers raise
                failure, no_room = told(error), out_of_memory(error)
            if failure:  # out here nobody holds the error, and with it what was allocated
                print(f"  {contender.library}, {contender.how}: {failure}", file=sys.stderr, flush=True)
                free(device)
            if no_room and held:
                later.append(contender)
            elif failure:
                found[contender] = failure
        found |= take_turns(case, held, device, steps)
        held.clear()
        release(device)
    return [
        {
            "library": contender.library,
            "how": contender.how,
            **(
                {"failed": one}
                if isinstance(one := found[contender], str)
                else one.record(ceiling.flops) | {"each_milliseconds": [round(1000 * time, 3) for time in one.times]}
            ),
        }
        for contender in waiting
    ]


def made_ready(contender: Contender, device: torch.device) -> Ready:
    torch.manual_seed(0)
    ready = prepare(contender.model, contender.work, device, warmups=WARMUPS)
    print(f"  {contender.library}, {contender.how}: ready in {ready.first_seconds:.1f} s", file=sys.stderr, flush=True)
    return ready


def take_turns(
    case: Case, held: dict[Contender, Ready], device: torch.device, steps: int
) -> dict[Contender, Result | str]:
    alone = case.what == "latency"
    part = math.ceil(steps * (ANSWERS if alone else 1) / ROUNDS)
    times: dict[Contender, list[float]] = {contender: [] for contender in held}
    failed: dict[Contender, str] = {}
    for _ in range(ROUNDS):
        for contender, ready in held.items():
            if contender in failed:
                continue
            try:
                ready.work()  # after it, caches and memory are this one's
                times[contender] += timed(ready.work, device, part, alone=alone)
            except Exception as error:
                failed[contender] = told(error)
    per_picture = flops(configure(case.model, image=case.image), case.what)
    return {
        contender: failed.get(contender)
        or Result(
            batch=case.batch,
            flops=per_picture,
            times=tuple(times[contender]),
            compiled=contender.compiled,
            first_seconds=ready.first_seconds,
            peak_bytes=ready.peak_bytes,
        )
        for contender, ready in held.items()
    }


def told(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{': ' * bool(lines)}{''.join(lines[:1])[:200]}"


def show(case: dict[str, Any]) -> None:
    print(f"\n{case['case']}: {case['what']}, {case['model']} at {case['image']} px, batch {case['batch']}")
    best = best_peer(case)
    for row in case["rows"]:
        name = f"  {row['library']:<12} {row['how']:<22}"
        if "failed" in row:
            print(f"{name} failed: {row['failed']}", flush=True)
            continue
        times, peak, compiling = ratio(row, best, "pictures_per_second"), row["peak_bytes"], row["compile_seconds"]
        print(
            f"{name} {row['pictures_per_second']:>10,.1f} pictures/s {row['milliseconds']:>9.2f} ms"
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
