"""Whether compiling a run earns back the time that it takes: a pass is timed where the run will be; what compiling
costs, and which share of a pass it saves, is known from another machine."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import nn

from vitkit.devices import Precision
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.model.vit import VisionTransformer
from vitkit.text import duration
from vitkit.train.distributed import Processes, Sharing
from vitkit.train.dry_run import forget, practise, seconds_of_a_pass
from vitkit.train.mixed_precision import Narrow
from vitkit.train.objectives.labels import Objective
from vitkit.train.plan import Plan

# measured on an H200: B/16 took 43 s to compile, L/16 75; where passes are launched as one, a step of a plain ViT up to
# that width was shorter afterwards by that share: wide ones have little left between their products
START, EACH_BLOCK = 12.0, 2.5  # seconds
SAVED = {192: 0.16, 384: 0.07, math.inf: 0.025}
SAVED_ELSEWHERE = 0.07
LONG = 2_000  # steps from which a run is compiled where a pass cannot be tried beforehand


@dataclass(frozen=True)
class Compiling:
    pays: bool
    words: str  # ", compiled …", or why not; nothing where there is nothing to say


def decide(
    asked: str,
    objective: Objective,
    plan: Plan,
    processes: Processes,
    precision: Precision,
    sharing: Sharing,
    *,
    recorded: bool = False,
) -> Compiling:
    if asked != "auto":
        return Compiling(asked == "yes", ", compiled" * (asked == "yes"))
    if processes.device.type != "cuda":
        return Compiling(False, "")
    if find_spec("triton") is None:
        return Compiling(False, ", not compiled (Triton, which torch compiles with, is not installed)")
    costs = expected_seconds(objective.model)
    if sharing == "fsdp":
        return Compiling(plan.steps >= LONG, ", compiled" * (plan.steps >= LONG))
    computed = Narrow(objective) if precision == "bf16" else objective
    each = seconds_of_a_pass(computed, objective, plan.micro, processes.device, recorded=recorded)
    share = expected_share(objective.model, recorded=recorded and precision == "bf16")
    return processes.broadcast(weighed(costs, share * each * plan.accumulate * plan.steps))


def weighed(costs: float, saves: float) -> Compiling:
    """Seconds of compiling, and those that it is expected to save over the run."""
    if saves > costs:
        return Compiling(True, f", compiled (some {costs:.0f} s, to save {duration(saves)})")
    return Compiling(False, f", not compiled (it would take some {costs:.0f} s and save {duration(saves)})")


def compile_now(shared: nn.Module, objective: Objective, micro: int, device: torch.device, *, must: bool) -> str:
    """The first pass, before the loop, where nobody takes its time for the speed of training; says how it went.

    What cannot be compiled is an error where it was asked for, and runs as it is where it was not.
    """
    started = time.perf_counter()
    try:
        practise(shared, objective, micro, device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return f"in {time.perf_counter() - started:.0f} s"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # compilers have kinds of their own
        first = "".join(str(error).strip().splitlines()[:1])[:200]
        if must:
            raise ConfigError(
                "torch could not compile this model here.",
                found=f"{type(error).__name__}: {first}",
                try_="--set compile=no",
            ) from error
        for part in shared.modules():
            part._compiled_call_impl = None
        return f"not, for that failed ({type(error).__name__}: {first}); going on without"
    finally:
        forget(objective, device)


def expected_seconds(model: Model) -> float:
    blocks = len(model.encoder.blocks) if isinstance(model, VisionTransformer) else sum(model.config.body.layers)
    return START + EACH_BLOCK * blocks


def expected_share(model: Model, *, recorded: bool) -> float:
    """Of a step, that compiling saves."""
    if not recorded or not isinstance(model, VisionTransformer) or model.config.stem or model.config.dropout:
        return SAVED_ELSEWHERE
    return next(share for width, share in SAVED.items() if model.config.width <= width)
