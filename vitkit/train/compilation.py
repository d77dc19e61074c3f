"""The decision whether torch.compile pays for itself in a run.

Forward and backward are timed on this machine; the cost of compiling and the share of time that it saves were measured
on an H200.
"""

import math
import time
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import nn

from vitkit.devices import TrainPrecision
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.model.vit import VisionTransformer
from vitkit.text import duration
from vitkit.torch_private import forget_compiled
from vitkit.train.distributed import Parallelism, Processes
from vitkit.train.dry_run import clear_gradients, dry_run, time_forward_backward
from vitkit.train.mixed_precision import MixedPrecision
from vitkit.train.objectives.base import Objective
from vitkit.train.plan import Plan

# B/16 took 43 s to compile, L/16 75 s. With a CUDA graph, a step of a plain ViT up to that width was shorter by that
# share: in wide models the matrix products dominate
BASE_SECONDS, SECONDS_PER_BLOCK = 12.0, 2.5
SAVING_BY_WIDTH = {192: 0.16, 384: 0.07, math.inf: 0.025}
OTHER_SAVING = 0.07
MIN_FSDP_STEPS = 2_000  # steps from which a run is compiled under FSDP, where nothing can be timed beforehand


@dataclass(frozen=True)
class CompileDecision:
    """The decision whether to compile, and its reason."""

    compiles: bool
    description: str  # "compiled …", "not compiled …" or empty


def should_compile(
    requested: str,
    objective: Objective,
    plan: Plan,
    processes: Processes,
    precision: TrainPrecision,
    parallelism: Parallelism,
    *,
    captured: bool = False,
) -> CompileDecision:
    if requested != "auto":
        return CompileDecision(requested == "yes", "compiled" * (requested == "yes"))
    if processes.device.type != "cuda":
        return CompileDecision(False, "")
    if find_spec("triton") is None:
        return CompileDecision(False, "not compiled (torch.compile needs Triton, which is not installed)")
    cost = compile_seconds(objective.model)
    if parallelism == "fsdp":
        return CompileDecision(plan.steps >= MIN_FSDP_STEPS, "compiled" * (plan.steps >= MIN_FSDP_STEPS))
    wrapped = MixedPrecision(objective) if precision == "bf16" else objective
    seconds = time_forward_backward(wrapped, objective, plan.micro, processes.device, captured=captured)
    saving = expected_saving(objective.model, captured=captured and precision == "bf16")
    return processes.broadcast(compare(cost, saving * seconds * plan.accumulate * plan.steps))


def compare(cost: float, saving: float) -> CompileDecision:
    """Decide by the seconds that compiling costs and those that it is expected to save over the run."""
    compiles = saving > cost
    outcome = "compiled" if compiles else "not compiled"
    return CompileDecision(compiles, f"{outcome} (saves {duration(saving)}, costs {duration(cost)})")


def warm_up_compiled(wrapped: nn.Module, objective: Objective, micro: int, device: torch.device, *, must: bool) -> str:
    """Compile by running forward and backward once, so that training speed leaves it out; return a description.

    A failure to compile is an error with `must`; otherwise the model runs in eager mode.
    """
    started = time.perf_counter()
    try:
        dry_run(wrapped, objective, micro, device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return f"in {time.perf_counter() - started:.0f} s"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # compilers raise types of their own
        first = "".join(str(error).strip().splitlines()[:1])[:200]
        if must:
            raise ConfigError(
                "torch.compile failed for this model.",
                found=f"{type(error).__name__}: {first}",
                try_="--set compile=no",
            ) from error
        forget_compiled(wrapped)
        return f"failed ({type(error).__name__}: {first}); running in eager mode"
    finally:
        clear_gradients(objective, device)


def compile_seconds(model: Model) -> float:
    blocks = model.config.layers
    return BASE_SECONDS + SECONDS_PER_BLOCK * blocks


def expected_saving(model: Model, *, captured: bool) -> float:
    """Return the share of a step that compiling saves."""
    if not captured or not isinstance(model, VisionTransformer) or model.config.stem or model.config.dropout:
        return OTHER_SAVING
    return next(share for width, share in SAVING_BY_WIDTH.items() if model.config.width <= width)
