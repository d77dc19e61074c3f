"""Settings and data → a trained model in a run folder: what was decided is said first, then the loop runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.distributed.fsdp import FSDPModule

from vitkit.compute.split_logits import answers
from vitkit.config import toml
from vitkit.config.schema import Fit
from vitkit.cost import cost
from vitkit.data.loader import Loader, Reader
from vitkit.data.partition import Partition, partition
from vitkit.data.sources.base import Data, DataError, Split
from vitkit.data.transforms import Fast
from vitkit.devices import (
    Precision,
    computing_with,
    describe_device,
    free_memory,
    pick_precision,
    pick_readers,
    pick_threads,
)
from vitkit.errors import ConfigError
from vitkit.model.build import Model, build
from vitkit.run_folder import RunError, RunFolder
from vitkit.text import counted
from vitkit.train import cuda_graph
from vitkit.train.checkpoint import check_shared
from vitkit.train.compilation import Compiling, compile_now, decide
from vitkit.train.distributed import Processes, Sharing, pick_sharing, share, whole
from vitkit.train.eight_bits import multiply_8_bits
from vitkit.train.ema import EMA
from vitkit.train.initial_model import remember_model, restart_model, start_model
from vitkit.train.loop import Look, Training
from vitkit.train.microbatch import settle
from vitkit.train.objectives.labels import Labels, Objective, class_weights
from vitkit.train.objectives.masked_patch import MaskedPatch
from vitkit.train.optimizer import build_optimizer, describe, freeze
from vitkit.train.plan import Plan, check_shares, count_steps, largest_divisor
from vitkit.train.signals import StopRequest
from vitkit.train.tracking import Trackers
from vitkit.weights.run_checkpoints import latest_step, whole_ones
from vitkit.weights.save import save

FREE_TO_CHANGE = (
    "data",
    "out",
    "device",
    "workers",
    "track",
    "save_every",
    "max_failed",
    "parallel",
    "compile",
    "recompute",
    "cuda_graph",
)  # on resuming

Say = Callable[[str, str], None]  # a name and what was decided


def train(config: Fit, data: Data, folder: RunFolder, processes: Processes, say: Say) -> Partition:
    """The whole run, or the rest of it; at the end the folder holds the model."""
    splits = partition(data, **config.partition)
    labelled = config.objective == "labels"
    check_patience(config, splits)
    say(
        "data",
        f"{Path(data.name).absolute().name}: {', '.join(splits.description)}"
        + (f", {len(data.classes)} classes, {_spread(splits.train, data)}" if labelled else ""),
    )
    config = count_steps(config, len(splits.train))
    begins = processes.broadcast(not whole_ones(folder.checkpoints))
    if not begins:
        check_unchanged(config, folder)
    part = check_shares(config, processes.world_size)
    model, words = (
        start_model(config, data.classes if labelled else (), multilabel=data.multilabel)
        if begins
        else restart_model(folder.checkpoints)
    )
    frozen = freeze(model, config.freeze)
    say("model", words + (f"; {counted(len(frozen), 'tensor')} frozen" if frozen else ""))
    torch.manual_seed(config.seed)  # an objective may draw weights of its own, whatever those of the model are from
    objective = _objective(model, config, splits.train, data).to(processes.device)
    precision = pick_precision(config.precision, processes.device)
    if config.fp8:
        multiply_8_bits(model, processes.device, precision)
    micro, recompute = settle(objective, part, processes, precision, micro=config.micro, recompute=config.recompute)
    plan = Plan(
        steps=config.steps or 0,
        pictures=len(splits.train),
        batch=config.batch,
        processes=processes.world_size,
        micro=largest_divisor(part, micro),
    )
    if plan.micro == 1 and (config.augment.mixup or config.augment.cutmix):
        raise ConfigError(
            "mixing needs two pictures in a pass, and there is one",
            try_="--set augment.mixup=0 augment.cutmix=0, a larger --batch, or a smaller --image",
        )
    sharing = pick_sharing(
        config.parallel, processes.world_size, cost(model.config).state_bytes, free_memory(processes.device)
    )
    asked = config.compile
    recorded = cuda_graph.decide(config.cuda_graph, objective, plan, processes, precision, sharing)
    compiling = decide(asked, objective, plan, processes, precision, sharing, recorded=recorded)
    if begins:
        # resuming in the same parts and numbers is resuming exactly
        config = replace(
            config,
            micro=plan.micro,
            precision=precision,
            recompute="yes" if recompute else "no",
            compile="yes" if compiling.pays else "no",
        )
        if processes.first:
            folder.write_config(config)
            folder.add_to_record(settings=toml.to_tables(config))
            remember_model(model, folder.checkpoints)
    found, readers = cost(model.config), pick_readers(config.workers, processes.device, processes.world_size)
    threads = pick_threads(processes.device, found.macs)
    say("device", describe_device(processes.device, threads) + f"; {counted(readers, 'reader', 'readers')} of pictures")
    training = _assemble(
        config,
        plan,
        objective,
        splits,
        folder,
        processes,
        precision,
        sharing,
        compiling,
        readers,
        say,
        multilabel=data.multilabel,
        recorded=recorded,
    )
    # weights, two moments and an average, in the two checkpoints that are kept and the one that is being written
    state = 4 * sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
    processes.alone(lambda: folder.check_space(3 * state))
    check_shared(folder.path, processes)
    if processes.first:
        folder.add_to_record(
            objective=config.objective,
            precision=precision,
            device=describe_device(processes.device, threads),
            processes=processes.world_size,
            split=splits.held_out,
            parameters=found.parameters,
            macs=found.macs,
            plan={
                "steps": plan.steps,
                "epochs": plan.epochs,
                "batch": plan.batch,
                "micro": plan.micro,
                "accumulate": plan.accumulate,
                "processes": plan.processes,
            },
        )
    with training.stop, computing_with(threads), closing(training.trackers):
        if compiling.pays:
            must = asked == "yes" and begins  # a run that goes on has it from where it began, perhaps another machine
            say("compiled", compile_now(training.shared, objective, plan.micro, processes.device, must=must))
        training.run()
    trained = _trained(training, model)
    if processes.first:
        kept = training.place.best_step if config.patience and training.place.best_step else training.place.step
        folder.add_to_record(kept_step=kept, stopped_early=training.place.stopped)
        save(trained, folder.path)
    return splits


def check_patience(config: Fit, splits: Partition) -> None:
    if config.patience and splits.validation is None:
        advice = "--set dev=0.1, or a val/ folder beside test/" if config.objective == "labels" else "patience = 0"
        raise ConfigError(f"patience = {config.patience}: there are no pictures to see by when to stop", try_=advice)


def _assemble(
    config: Fit,
    plan: Plan,
    objective: Objective,
    splits: Partition,
    folder: RunFolder,
    processes: Processes,
    precision: Precision,
    sharing: Sharing,
    compiling: Compiling,
    readers: int,
    say: Say,
    *,
    multilabel: bool,
    recorded: bool,
) -> Training:
    device, model = processes.device, objective.model
    shared = share(objective, sharing, processes, precision, compiled=compiling.pays)
    optimizer = build_optimizer(objective, config, fused=device.type == "cuda")
    fast = Fast(
        image=model.config.image,
        crop=config.augment.crop,
        aspect=config.augment.aspect,
        flip=config.augment.flip,
        whole=model.metadata.preprocessing,
    )
    loader = Loader(
        Reader(split=splits.train, transform=fast, channels=model.config.channels, seed=config.seed),
        batch=plan.batch // plan.accumulate,
        workers=readers,
        rank=processes.rank,
        ranks=processes.world_size,
        pin=device.type == "cuda",
        max_failed=config.max_failed if processes.world_size == 1 else 1.0,
    )  # the loop adds up
    warmup = f" after {counted(int(config.schedule.warmup), 'warm-up step')}" if config.schedule.warmup else ""
    say(
        "recipe",
        "; ".join(
            [
                config.recipe or "settings of your own",
                describe(optimizer),
                f"learning rate {config.lr:g}, {config.schedule.kind}{warmup}",
                *_regularised(config, model),
            ]
        ),
    )
    say("pictures", "; ".join(fast.describe() + _augmented(config)))
    say(
        "numbers",
        precision
        + ", over fp32 weights" * (precision == "bf16")
        + ", products forward in fp8" * config.fp8
        + f", {sharing}" * (sharing != "none")
        + compiling.words
        + ", each pass launched as one" * recorded,
    )
    again = ", each block gone through again on the way back" * (config.recompute == "yes")
    say("plan", f"{plan.describe()}{again} → {folder.path}")
    look = None
    if splits.validation is not None:
        look = _look(objective, splits.validation, config, processes, precision, readers, multilabel=multilabel)
    return Training(
        config=config,
        plan=plan,
        objective=objective,
        shared=shared,
        optimizer=optimizer,
        average=EMA(objective, config.average) if config.average else None,
        loader=loader,
        processes=processes,
        folder=folder,
        stop=StopRequest(),
        look=look,
        recorded=recorded,
        trackers=Trackers(
            config.track if processes.first else (),
            folder.path,
            toml.to_tables(config),
            step=latest_step(folder.checkpoints),
        ),
    )


def _objective(model: Model, config: Fit, fit: Split, data: Data) -> Objective:
    if config.objective == "masked-patch":
        if config.augment.mixup or config.augment.cutmix:
            raise ConfigError("masked patch prediction looks at single pictures: mixup and cutmix do not go with it")
        return MaskedPatch(model, config.masked)
    weights = class_weights(fit.labels, len(data.classes), config.balance)
    return Labels(model, multilabel=data.multilabel, smoothing=config.label_smoothing, weights=weights)


def _look(
    objective: Objective,
    dev: Split,
    config: Fit,
    processes: Processes,
    precision: Precision,
    readers: int,
    *,
    multilabel: bool,
) -> Look:
    """At all dev pictures; processes share them, except where each needs the others for a forward pass."""
    sharded = objective if isinstance(objective, FSDPModule) else None
    rank, ranks = (0, 1) if sharded else (processes.rank, processes.world_size)

    def look() -> dict[str, float]:
        if sharded:
            sharded.unshard()  # the model is called without the objective here, which would gather its own part
        found = answers(
            objective.model,
            dev,
            device=processes.device,
            precision=precision,
            batch=64,
            workers=readers,
            rank=rank,
            ranks=ranks,
            max_failed=config.max_failed,
        )
        if sharded:
            sharded.reshard()
        targets = found.labels
        if multilabel and len(targets):
            losses = F.binary_cross_entropy_with_logits(found.logits, targets, reduction="none").sum(1)
            right = targets.gather(1, found.logits.argmax(1, keepdim=True))[:, 0]
        else:
            losses = F.cross_entropy(found.logits, targets, reduction="none")
            right = (found.logits.argmax(1) == targets).float()
        sums = losses.double().sum().item(), right.double().sum().item(), float(len(losses))
        loss, hits, count = processes.broadcast(sums) if sharded else processes.total(*sums)  # all must decide alike
        if not count:
            raise DataError(
                "no dev picture could be decoded: there is nothing to choose by.",
                try_=f"vitkit check {config.data} names the broken ones",
            )
        # without one right answer to a picture, the loss says more than its best guess
        score = -loss / count if multilabel else hits / count
        return {"score": score, "loss": loss / count, "top1": hits / count}

    return look


def _trained(training: Training, model: Model) -> Model:
    """The weights to keep, averaged if they were, whole and on the host."""
    average = training.average
    state = {name: whole(tensor.detach()).cpu() for name, tensor in model.state_dict().items()}
    for name, tensor in (average.state() if average is not None else {}).items():
        if name.startswith("model."):
            state[name.removeprefix("model.")] = whole(tensor).cpu()
    with torch.device("meta"):
        trained = build(model.config)
    trained.load_state_dict(state, assign=True)
    trained.metadata = model.metadata
    return trained.eval()


def check_unchanged(config: Fit, folder: RunFolder) -> None:
    """A run goes on as it began, or not at all: another setting half-way would be neither run."""
    began = folder.record().get("settings")
    if began is None:
        return
    changed = toml.differences(toml.from_tables(began), config, FREE_TO_CHANGE)
    if changed:
        raise RunError(
            f"{folder.path} was begun with other settings.",
            changed=changed,
            try_="change config.toml back, or start a new run with vitkit fit --config",
        )


def _spread(split: Split, data: Data) -> str:
    counts = split.per_class(len(data.classes))
    low, high = int(counts.min()), int(counts.max())
    return f"{low:,} to {high:,} pictures each" if low != high else f"{counted(low, 'picture')} each"


def _regularised(config: Fit, model: Model) -> list[str]:
    words = {
        "clip": "gradients clipped at",
        "label_smoothing": "label smoothing",
        "dropout": "dropout",
        "stochastic_depth": "stochastic depth",
        "balance": "balance of classes",
        "average": "averaging",
    }
    # dropout may have come with the weights
    values = {name: getattr(config, name) or getattr(model.config, name, 0) for name in words}
    return [f"{word} {values[name]:g}" for name, word in words.items() if values[name]]


def _augmented(config: Fit) -> list[str]:
    how, words = config.augment, []
    if how.randaugment:
        words.append(f"RandAugment ({how.randaugment[0]}, {how.randaugment[1]:g})")
    words += [f"{name} {getattr(how, name):g}" for name in ("erase", "mixup", "cutmix") if getattr(how, name)]
    return words
