"""Training a model from settings and data into a run folder; the decisions are printed before the loop starts."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vitkit import devices
from vitkit.compute.kept_inputs import KeptInputs
from vitkit.compute.sharding import full_tensor
from vitkit.config import toml
from vitkit.config.schema import Fit
from vitkit.cost import cost
from vitkit.data.batch_builder import first_images
from vitkit.data.loader import Loader
from vitkit.data.partition import Partition, partition
from vitkit.data.sources.dataset import Data, Split
from vitkit.data.split_dataset import SplitDataset
from vitkit.data.transforms import EvalTransform
from vitkit.errors import ConfigError
from vitkit.model.base import Preparation
from vitkit.model.build import Model, build_on_meta
from vitkit.progress import PrintLine
from vitkit.run_folder import RunError, RunFolder
from vitkit.text import counted
from vitkit.train.cache import ImagesInMemory
from vitkit.train.checkpoint import check_folder_shared, intact_checkpoint
from vitkit.train.compilation import warm_up_compiled
from vitkit.train.decisions import Decisions, decide
from vitkit.train.describe_training import describe_data, describe_training
from vitkit.train.distributed import Processes, parallelize
from vitkit.train.ema import EMA
from vitkit.train.head import decide_start, train_head
from vitkit.train.initial_model import initial_model, restored_model, write_description
from vitkit.train.initial_segmenter import record_of_masks
from vitkit.train.loop import TrainingLoop
from vitkit.train.mixed_precision import use_fp8
from vitkit.train.objectives.base import Objective
from vitkit.train.objectives.build import build_objective
from vitkit.train.optimizer import build_optimizer, freeze
from vitkit.train.plan import batch_per_process, count_steps
from vitkit.train.signals import StopRequest
from vitkit.train.tracking import Trackers
from vitkit.train.validation import build_validation
from vitkit.weights.run_checkpoints import complete_checkpoints, read_record, step_of
from vitkit.weights.save import save

CHANGEABLE_ON_RESUME = (
    "data out device workers track save_every max_failed parallel compile recompute cuda_graph".split()
)
EARLIER_EMA = (
    "an earlier version averaged the weights of steps 1 to {step:,} with a decay that only approached {decay}; from "
    "here on it is {decay}, as set"
)


def train(
    config: Fit,
    data: Data,
    folder: RunFolder,
    processes: Processes,
    print_line: PrintLine,
    images: ImagesInMemory | None = None,
    meanwhile: Callable[[Model, Partition], None] | None = None,
) -> Partition:
    """Run or resume the training; at the end the folder holds the model.

    meanwhile   called with the model and the splits in a thread of its own, while the device computes steps
    """
    images = images or ImagesInMemory()
    splits = partition(data, **config.partition)
    labelled = config.labelled
    check_patience(config, splits)
    describe_data(data, splits, labelled=labelled, print_line=print_line)
    config = decide_start(config, processes.device)
    if config.start == "head":
        train_head(config, data, splits, folder, processes, print_line)
        return splits
    config = count_steps(config, len(splits.train))
    is_new = processes.broadcast(not complete_checkpoints(folder.checkpoints))
    resumed = None if is_new else _checkpoint_to_resume(config, folder, processes, print_line)
    share = batch_per_process(config, processes.world_size)
    model, description = (
        initial_model(
            config,
            data.classes if labelled else (),
            multilabel=data.multilabel,
            record=record_of_masks(data, splits.train) if data.task == "segment" else None,
        )
        if resumed is None
        else restored_model(resumed, config.weights)
    )
    if resumed is None and config.weights == "none" and model.sampled_images:
        print_line("prepared", _prepare(model, config, splits.train, processes))
    frozen = freeze(model, config.freeze)
    print_line("model", description + (f"; {counted(len(frozen), 'tensor')} frozen" if frozen else ""))
    torch.manual_seed(config.seed)  # for weights of the objective, independent of how the model was made
    objective = build_objective(model, config, splits.train, data).to(processes.device)
    precision = devices.pick_precision(config.precision, processes.device)
    if config.fp8:
        use_fp8(model, processes.device, precision)
    requested = config.compile
    decisions = decide(config, objective, splits, processes, precision, images, share=share, is_new=is_new)
    config, plan = decisions.config, decisions.plan
    if is_new and processes.is_rank_zero:
        folder.write_config(config)
        folder.add_to_record(settings=toml.to_tables(config))
        write_description(model, folder.checkpoints)
    loop = _build_loop(
        decisions,
        objective,
        splits,
        folder,
        processes,
        multilabel=data.multilabel,
        resumed=resumed,
        inputs=images.inputs,
    )
    describe_training(decisions, objective, loop.optimizer, loop.loader.dataset, processes, folder.path, print_line)
    # weights, two moments and the EMA, in two kept checkpoints and the one that is being written
    state = 4 * sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
    processes.on_rank_zero(lambda: folder.check_space(3 * state))
    check_folder_shared(folder.path, processes)
    if processes.is_rank_zero:
        folder.add_to_record(**_record(decisions, objective, splits, processes))
    if meanwhile is not None:
        loop.meanwhile = partial(meanwhile, model, splits)
    with loop.stop, devices.use_threads(decisions.threads), closing(loop.trackers):
        if decisions.compilation.compiles:
            must = requested == "yes" and is_new  # a resumed run may have been compiled on another machine
            print_line("compiled", warm_up_compiled(loop.wrapped, objective, plan.micro, processes.device, must=must))
        loop.run()
    print_line("saved", loop.checkpoint_wait.describe())
    if loop.lost_best:
        print_line("warning", loop.lost_best)
    trained = _trained_model(loop, model)
    objective.finish(trained, config)
    if processes.is_rank_zero:
        lost = {"lost_best": loop.lost_best} if loop.lost_best else {}
        folder.add_to_record(
            kept_step=loop.kept_step,
            stopped_early=loop.state.stopped,
            checkpoint_wait=asdict(loop.checkpoint_wait),
            **lost,
        )
        save(trained, folder.path)
    return splits


def _checkpoint_to_resume(config: Fit, folder: RunFolder, processes: Processes, print_line: PrintLine) -> Path:
    check_settings_unchanged(config, folder)
    resumed, warnings = intact_checkpoint(folder.checkpoints, processes)
    for text in warnings:
        print_line("warning", text)
    if config.average and "averaged" not in read_record(resumed, RunError):
        print_line("note", EARLIER_EMA.format(step=step_of(resumed), decay=config.average))
    return resumed


def check_patience(config: Fit, splits: Partition) -> None:
    """Raise if early stopping is on and there is no validation split."""
    if config.patience and splits.validation is None:
        advice = "--set dev=0.1, or a val/ folder next to test/" if config.labelled else "patience = 0"
        raise ConfigError(
            f"patience = {config.patience}: early stopping needs validation images, and there are none", try_=advice
        )


def _build_loop(
    decisions: Decisions,
    objective: Objective,
    splits: Partition,
    folder: RunFolder,
    processes: Processes,
    *,
    multilabel: bool,
    resumed: Path | None,
    inputs: KeptInputs,
) -> TrainingLoop:
    config, plan, model = decisions.config, decisions.plan, objective.model
    compiled, on_gpu = decisions.compilation.compiles, processes.device.type == "cuda"
    wrapped = parallelize(objective, decisions.parallelism, processes, decisions.precision, compiled=compiled)
    dataset = SplitDataset(
        split=splits.train,
        transform=decisions.cache.transform,
        channels=model.config.channels,
        seed=config.seed,
        cache=decisions.cache.cache,
        order=decisions.order,
    )
    loader = Loader(
        dataset,
        batch_size=plan.batch // plan.accumulate,
        workers=decisions.workers,
        rank=processes.rank,
        world_size=processes.world_size,
        pin_memory=on_gpu,
        max_failed=config.max_failed if processes.world_size == 1 else 1.0,  # the loop sums over ranks
    )
    validate = None
    if splits.validation is not None:
        validate = build_validation(
            objective,
            splits.validation,
            config,
            processes,
            decisions.precision,
            decisions.workers,
            multilabel=multilabel,
            kept=inputs,
        )
    return TrainingLoop(
        config=config,
        plan=plan,
        objective=objective,
        wrapped=wrapped,
        optimizer=build_optimizer(objective, config, fused=on_gpu),
        ema=EMA(objective, config.average) if config.average else None,
        loader=loader,
        processes=processes,
        folder=folder,
        stop=StopRequest(),
        validate=validate,
        resumed=resumed,
        captured=decisions.captured,
        trackers=Trackers(
            config.track if processes.is_rank_zero else (),
            folder.path,
            toml.to_tables(config),
            step=0 if resumed is None else step_of(resumed),
        ),
    )


def _record(decisions: Decisions, objective: Objective, splits: Partition, processes: Processes) -> dict[str, Any]:
    """Return what the run keeps about how it was trained."""
    plan, estimate = decisions.plan, cost(objective.model.config)
    return {
        "objective": decisions.config.objective,
        "precision": decisions.precision,
        "device": devices.describe_device(processes.device, decisions.threads),
        "processes": processes.world_size,
        "split": splits.held_out,
        "subset": splits.subset,
        "parameters": estimate.parameters,
        "macs": estimate.macs,
        "plan": {
            "steps": plan.steps,
            "epochs": plan.epochs,
            "batch": plan.batch,
            "micro": plan.micro,
            "accumulate": plan.accumulate,
            "processes": plan.processes,
        },
    }


def _prepare(model: Model, config: Fit, split: Split, processes: Processes) -> str:
    """Let rank zero take from training images what the model takes from them, set it on all, and describe it."""

    def prepare() -> Preparation:
        transform = EvalTransform(image=model.config.image, preprocessing=model.metadata.preprocessing)
        sampled = SplitDataset(split=split, transform=transform, channels=model.config.channels, seed=config.seed)
        return model.prepare(first_images(sampled, model.sampled_images), config.seed)

    prepared: Preparation = processes.broadcast(processes.on_rank_zero(prepare))
    model.load_state_dict({**model.state_dict(), **prepared.tensors})
    return prepared.description


def _trained_model(loop: TrainingLoop, model: Model) -> Model:
    """Return the model to keep, with the EMA weights where there are any, unsharded and on the CPU."""
    state = {name: full_tensor(tensor.detach()).cpu() for name, tensor in model.state_dict().items()}
    for name, tensor in (loop.ema.state() if loop.ema is not None else {}).items():
        if name.startswith("model."):
            state[name.removeprefix("model.")] = full_tensor(tensor).cpu()
    trained = build_on_meta(model.config)
    trained.load_state_dict(state, assign=True)
    trained.metadata = model.metadata
    return trained.eval()


def check_settings_unchanged(config: Fit, folder: RunFolder) -> None:
    """Raise if a setting that changes the result differs from those that the run was started with."""
    original = folder.record().get("settings")
    if original is None:
        return
    changed = toml.differences(toml.from_tables(original), config, CHANGEABLE_ON_RESUME)
    if changed:
        raise RunError(
            f"{folder.path} was started with other settings.",
            changed=changed,
            try_="change config.toml back, or start a new run with vitkit fit --config",
        )
