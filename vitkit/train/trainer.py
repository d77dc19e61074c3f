"""Training a model from settings and data into a run folder; the decisions are printed before the loop starts."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch

from vitkit import devices
from vitkit.compute.kept_inputs import KeptInputs
from vitkit.compute.sharding import full_tensor
from vitkit.config import toml
from vitkit.config.schema import Fit
from vitkit.cost import cost
from vitkit.data.epoch_order import OrderOfEpoch, order_of, pick_shuffle
from vitkit.data.loader import Loader, SplitDataset
from vitkit.data.partition import Partition, partition
from vitkit.data.sources.dataset import Data, Split
from vitkit.data.transforms import EvalTransform
from vitkit.errors import ConfigError
from vitkit.model.base import Preparation
from vitkit.model.build import Model, build_on_meta
from vitkit.progress import PrintLine
from vitkit.run_folder import RunError, RunFolder
from vitkit.text import counted
from vitkit.train import cuda_graph
from vitkit.train.cache import CacheChoice, ImagesInMemory, choose_cache
from vitkit.train.checkpoint import check_folder_shared, intact_checkpoint
from vitkit.train.compilation import CompileDecision, should_compile, warm_up_compiled
from vitkit.train.distributed import Parallelism, Processes, parallelize, pick_parallelism
from vitkit.train.ema import EMA
from vitkit.train.head import decide_start, train_head
from vitkit.train.initial_model import initial_model, restored_model, write_description
from vitkit.train.initial_segmenter import record_of_masks
from vitkit.train.kernel_build import KernelBuild
from vitkit.train.loop import TrainingLoop
from vitkit.train.microbatch import choose_micro_batch
from vitkit.train.mixed_precision import use_fp8
from vitkit.train.objectives.base import Objective
from vitkit.train.objectives.build import build_objective
from vitkit.train.optimizer import build_optimizer, describe, freeze
from vitkit.train.plan import Plan, batch_per_process, count_steps, largest_divisor
from vitkit.train.signals import StopRequest
from vitkit.train.tracking import Trackers
from vitkit.train.training_transform import training_transform
from vitkit.train.validation import build_validation
from vitkit.weights.run_checkpoints import complete_checkpoints, read_record, step_of
from vitkit.weights.save import save

CHANGEABLE_ON_RESUME = (
    "data out device workers track save_every max_failed parallel compile recompute cuda_graph".split()
)
TARGET_IMAGES = 128  # that show how frequent colours are; a second or two of decoding
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
    print_line(
        "data",
        f"{Path(data.name).absolute().name}: {', '.join(splits.description)}"
        + (f", {_describe_classes(splits.train, data)}" if labelled else ""),
    )
    for note in splits.notes:
        print_line("note", note)
    config = decide_start(config, processes.device)
    if config.start == "head":
        train_head(config, data, splits, folder, processes, print_line)
        return splits
    config = count_steps(config, len(splits.train))
    is_new = processes.broadcast(not complete_checkpoints(folder.checkpoints))
    resumed = None
    if not is_new:
        check_settings_unchanged(config, folder)
        resumed, warnings = intact_checkpoint(folder.checkpoints, processes)
        for text in warnings:
            print_line("warning", text)
        if config.average and "averaged" not in read_record(resumed, RunError):
            print_line("note", EARLIER_EMA.format(step=step_of(resumed), decay=config.average))
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
    kernels = KernelBuild(objective, config.micro or share, processes.device, precision)
    workers = devices.pick_workers(config.workers, processes.device, devices.processes_sharing_cores())
    cache = choose_cache(  # before the micro-batch, which has what the cache leaves
        config.cache,
        splits.train,
        training_transform(config, model, splits.train),
        model.config.channels,
        processes,
        epochs=(config.steps or 0) * config.batch / len(splits.train),
        is_new=is_new,
        shared=images.caches,
    )
    kernels.wait()
    shuffle = pick_shuffle(config.shuffle, len(splits.train), is_new=is_new)
    order = order_of(splits.train, shuffle, config.seed, config.shuffle_buffer)
    micro, recompute = choose_micro_batch(
        objective, share, processes, precision, micro=config.micro, recompute=config.recompute
    )
    plan = Plan(
        steps=config.steps or 0,
        images=len(splits.train),
        batch=config.batch,
        processes=processes.world_size,
        micro=largest_divisor(share, micro),
    )
    if plan.micro == 1 and (config.augment.mixup or config.augment.cutmix):
        raise ConfigError(
            "mixup and cutmix need two images in a micro-batch, and there is one",
            try_="--set augment.mixup=0 augment.cutmix=0, a larger --batch, or a smaller --image",
        )
    parallelism = pick_parallelism(
        config.parallel, processes.world_size, cost(model.config).state_bytes, devices.free_memory(processes.device)
    )
    requested = config.compile
    captured = cuda_graph.should_capture(config.cuda_graph, objective, plan, processes, precision, parallelism)
    decision = should_compile(requested, objective, plan, processes, precision, parallelism, captured=captured)
    if is_new:
        # resuming is exact with the same micro-batch and precision
        config = replace(
            config,
            micro=plan.micro,
            precision=precision,
            recompute="yes" if recompute else "no",
            compile="yes" if decision.compiles else "no",
            cache=cache.memory,
            shuffle=shuffle,
        )
        if processes.is_rank_zero:
            folder.write_config(config)
            folder.add_to_record(settings=toml.to_tables(config))
            write_description(model, folder.checkpoints)
    estimate = cost(model.config)
    threads = devices.pick_threads(processes.device, estimate.macs)
    print_line("device", f"{devices.describe_device(processes.device, threads)}; {counted(workers, 'data worker')}")
    loop = _build_loop(
        config,
        plan,
        objective,
        splits,
        folder,
        processes,
        precision,
        parallelism,
        decision,
        cache,
        workers,
        print_line,
        multilabel=data.multilabel,
        resumed=resumed,
        captured=captured,
        order=order,
        inputs=images.inputs,
    )
    # weights, two moments and the EMA, in two kept checkpoints and the one that is being written
    state = 4 * sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
    processes.on_rank_zero(lambda: folder.check_space(3 * state))
    check_folder_shared(folder.path, processes)
    if processes.is_rank_zero:
        folder.add_to_record(
            objective=config.objective,
            precision=precision,
            device=devices.describe_device(processes.device, threads),
            processes=processes.world_size,
            split=splits.held_out,
            subset=splits.subset,
            parameters=estimate.parameters,
            macs=estimate.macs,
            plan={
                "steps": plan.steps,
                "epochs": plan.epochs,
                "batch": plan.batch,
                "micro": plan.micro,
                "accumulate": plan.accumulate,
                "processes": plan.processes,
            },
        )
    if meanwhile is not None:
        loop.meanwhile = partial(meanwhile, model, splits)
    with loop.stop, devices.use_threads(threads), closing(loop.trackers):
        if decision.compiles:
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


def check_patience(config: Fit, splits: Partition) -> None:
    """Raise if early stopping is on and there is no validation split."""
    if config.patience and splits.validation is None:
        advice = "--set dev=0.1, or a val/ folder next to test/" if config.labelled else "patience = 0"
        raise ConfigError(
            f"patience = {config.patience}: early stopping needs validation images, and there are none", try_=advice
        )


def _build_loop(
    config: Fit,
    plan: Plan,
    objective: Objective,
    splits: Partition,
    folder: RunFolder,
    processes: Processes,
    precision: devices.TrainPrecision,
    parallelism: Parallelism,
    decision: CompileDecision,
    cache: CacheChoice,
    workers: int,
    print_line: PrintLine,
    *,
    multilabel: bool,
    resumed: Path | None,
    captured: bool,
    order: OrderOfEpoch,
    inputs: KeptInputs,
) -> TrainingLoop:
    device, model = processes.device, objective.model
    wrapped = parallelize(objective, parallelism, processes, precision, compiled=decision.compiles)
    optimizer = build_optimizer(objective, config, fused=device.type == "cuda")
    transform = cache.transform
    loader = Loader(
        SplitDataset(
            split=splits.train,
            transform=transform,
            channels=model.config.channels,
            seed=config.seed,
            cache=cache.cache,
            order=order,
        ),
        batch_size=plan.batch // plan.accumulate,
        workers=workers,
        rank=processes.rank,
        world_size=processes.world_size,
        pin_memory=device.type == "cuda",
        max_failed=config.max_failed if processes.world_size == 1 else 1.0,  # the loop sums over ranks
    )
    drops = ", ".join(f"{share:.0%}" for share in config.schedule.drops)
    decay = config.schedule.kind + f" (a tenth from {drops} of the run on)" * (config.schedule.kind == "step")
    warmup = f" after {counted(int(config.schedule.warmup), 'warm-up step')}" if config.schedule.warmup else ""
    print_line(
        "recipe",
        "; ".join(
            [
                config.recipe or "your settings",
                describe(optimizer),
                f"learning rate {config.lr:g}, {decay}{warmup}",
                *_describe_regularisation(config, model),
            ]
        ),
    )
    if config.average and plan.steps * (1 - config.average) < 1:
        print_line(
            "note",
            f"EMA {config.average} averages about {1 / (1 - config.average):,.0f} steps, and there are {plan.steps:,}: "
            "the saved weights will be nearly the mean over all of them",
        )
    print_line("cache", cache.description)
    print_line("images", "; ".join(transform.describe() + _describe_augmentation(config)))
    evaluation = EvalTransform(image=model.config.image, preprocessing=model.metadata.preprocessing)
    print_line("input", f"{evaluation.description} (when it is scored and used)")
    described = type(objective).describe is not Objective.describe  # else no image is decoded for it
    if described and processes.is_rank_zero:
        print_line("target", objective.describe(loader.dataset.sample(TARGET_IMAGES) / 255))
    computing = precision + " (fp32 master weights)" * (precision == "bf16") + ", fp8 forward products" * config.fp8
    computing += f", {parallelism.upper()}" * (parallelism != "none") + ", CUDA graph" * captured
    not_fused = objective.reason_not_fused if device.type == "cuda" else None
    print_line("precision", "; ".join(filter(None, [computing, decision.description, not_fused])))
    recompute = ", activation checkpointing" * (config.recompute == "yes")
    print_line("plan", f"{plan.describe()}{recompute} → {folder.path}")
    validate = None
    if splits.validation is not None:
        validate = build_validation(
            objective, splits.validation, config, processes, precision, workers, multilabel=multilabel, kept=inputs
        )
    return TrainingLoop(
        config=config,
        plan=plan,
        objective=objective,
        wrapped=wrapped,
        optimizer=optimizer,
        ema=EMA(objective, config.average) if config.average else None,
        loader=loader,
        processes=processes,
        folder=folder,
        stop=StopRequest(),
        validate=validate,
        resumed=resumed,
        captured=captured,
        trackers=Trackers(
            config.track if processes.is_rank_zero else (),
            folder.path,
            toml.to_tables(config),
            step=0 if resumed is None else step_of(resumed),
        ),
    )


def _prepare(model: Model, config: Fit, split: Split, processes: Processes) -> str:
    """Let rank zero take from training images what the model takes from them, set it on all, and describe it."""

    def prepare() -> Preparation:
        transform = EvalTransform(image=model.config.image, preprocessing=model.metadata.preprocessing)
        sampled = SplitDataset(split=split, transform=transform, channels=model.config.channels, seed=config.seed)
        return model.prepare(sampled.sample(model.sampled_images), config.seed)

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


def _describe_classes(split: Split, data: Data) -> str:
    classes = counted(len(data.classes), "class", "classes")
    if data.task == "segment":
        return f"masks of {classes}"
    counts = split.per_class(len(data.classes))
    low, high = int(counts.min()), int(counts.max())
    return f"{classes}, {low:,} to {high:,} images each" if low != high else f"{classes}, {counted(low, 'image')} each"


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


def _describe_augmentation(config: Fit) -> list[str]:
    settings, items = config.augment, []
    if config.objective == "segment":
        scale, aspect = settings.scale, settings.aspect
        items.append(
            f"drawn at {scale[0]:g} to {scale[1]:g} times its sides, stretched by {aspect[0]:.2g} to {aspect[1]:.2g}"
        )
        items += ["random horizontal flip of half of the images"] * settings.flip
        items += [f"colour jitter {settings.colour:g}"] * bool(settings.colour)
    if settings.randaugment:
        items.append(f"RandAugment ({settings.randaugment[0]}, {settings.randaugment[1]:g})")
    items += [f"{name} {getattr(settings, name):g}" for name in ("erase", "mixup", "cutmix") if getattr(settings, name)]
    return items
