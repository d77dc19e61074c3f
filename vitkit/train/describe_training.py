"""The lines that say how a run will train, before its first step."""

from __future__ import annotations

from pathlib import Path

from torch.optim import Optimizer

from vitkit import devices
from vitkit.config.schema import Fit
from vitkit.data.batch_builder import first_images
from vitkit.data.partition import Partition
from vitkit.data.sources.dataset import Data, Split
from vitkit.data.split_dataset import SplitDataset
from vitkit.data.transforms import EvalTransform
from vitkit.model.build import Model
from vitkit.progress import PrintLine
from vitkit.text import counted
from vitkit.train.decisions import Decisions
from vitkit.train.distributed import Processes
from vitkit.train.inputs import build_inputs
from vitkit.train.objectives.base import Objective
from vitkit.train.optimizer import describe

TARGET_IMAGES = 128  # that show how frequent colours are; a second or two of decoding


def describe_data(data: Data, splits: Partition, *, labelled: bool, print_line: PrintLine) -> None:
    """Print the splits, the classes and what is notable about them."""
    classes = f", {_describe_classes(splits.train, data)}" if labelled else ""
    print_line("data", f"{Path(data.name).absolute().name}: {', '.join(splits.description)}{classes}")
    for note in splits.notes:
        print_line("note", note)


def describe_training(
    decisions: Decisions,
    objective: Objective,
    optimizer: Optimizer,
    dataset: SplitDataset,
    processes: Processes,
    folder: Path,
    print_line: PrintLine,
) -> None:
    """Print the decisions, the recipe, and what happens to the images."""
    config, plan, model = decisions.config, decisions.plan, objective.model
    device = devices.describe_device(processes.device, decisions.threads)
    print_line("device", f"{device}; {counted(decisions.workers, 'data worker')}")
    recipe = [
        config.recipe or "your settings",
        describe(optimizer),
        f"learning rate {config.lr:g}, {_describe_schedule(config)}",
        *_describe_regularisation(config, model),
    ]
    print_line("recipe", "; ".join(recipe))
    if config.average and plan.steps * (1 - config.average) < 1:
        print_line(
            "note",
            f"EMA {config.average} averages about {1 / (1 - config.average):,.0f} steps, and there are {plan.steps:,}: "
            "the saved weights will be nearly the mean over all of them",
        )
    print_line("cache", decisions.cache.description)
    augmented = build_inputs(config, model.config, processes.rank).describe()
    print_line("images", "; ".join(decisions.cache.transform.describe() + augmented))
    evaluation = EvalTransform(image=model.config.image, preprocessing=model.metadata.preprocessing)
    print_line("input", f"{evaluation.description} (when it is scored and used)")
    described = type(objective).describe is not Objective.describe  # else no image is decoded for it
    if described and processes.is_rank_zero:
        print_line("target", objective.describe(first_images(dataset, TARGET_IMAGES) / 255))
    not_fused = objective.reason_not_fused if processes.device.type == "cuda" else None
    computing = [_describe_precision(decisions), decisions.compilation.description, not_fused]
    print_line("precision", "; ".join(filter(None, computing)))
    recompute = ", activation checkpointing" * (config.recompute == "yes")
    print_line("plan", f"{plan.describe()}{recompute} → {folder}")


def _describe_classes(split: Split, data: Data) -> str:
    classes = counted(len(data.classes), "class", "classes")
    if data.task == "segment":
        return f"masks of {classes}"
    counts = split.per_class(len(data.classes))
    low, high = int(counts.min()), int(counts.max())
    return f"{classes}, {low:,} to {high:,} images each" if low != high else f"{classes}, {counted(low, 'image')} each"


def _describe_schedule(config: Fit) -> str:
    drops = ", ".join(f"{share:.0%}" for share in config.schedule.drops)
    decay = config.schedule.kind + f" (a tenth from {drops} of the run on)" * (config.schedule.kind == "step")
    warmup = f" after {counted(int(config.schedule.warmup), 'warm-up step')}" if config.schedule.warmup else ""
    return decay + warmup


def _describe_precision(decisions: Decisions) -> str:
    precision, parallelism = decisions.precision, decisions.parallelism
    computing = precision + " (fp32 master weights)" * (precision == "bf16")
    computing += ", fp8 forward products" * decisions.config.fp8
    return computing + f", {parallelism.upper()}" * (parallelism != "none") + ", CUDA graph" * decisions.captured


def _describe_regularisation(config: Fit, model: Model) -> list[str]:
    labels = {
        "clip": "gradient clipping",
        "label_smoothing": "label smoothing",
        "dropout": "dropout",
        "stochastic_depth": "stochastic depth",
        "balance": "class balance",
    }
    # the config of loaded weights may set dropout, too
    values = {name: getattr(config, name) or getattr(model.config, name, 0) for name in labels}
    items = [f"{label} {values[name]:g}" for name, label in labels.items() if values[name]]
    return items + [f"EMA (Polyak average) {config.average}, corrected for its start"] * bool(config.average)
