"""The decisions of a run before its first step: where images are kept, how a step is divided and computed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vitkit import devices
from vitkit.config.schema import Fit
from vitkit.cost import cost
from vitkit.data.epoch_order import OrderOfEpoch, order_of, pick_shuffle
from vitkit.data.partition import Partition
from vitkit.errors import ConfigError
from vitkit.train import cuda_graph
from vitkit.train.cache import CacheChoice, ImagesInMemory, choose_cache
from vitkit.train.compilation import CompileDecision, should_compile
from vitkit.train.distributed import Parallelism, Processes, pick_parallelism
from vitkit.train.kernel_build import KernelBuild
from vitkit.train.microbatch import choose_micro_batch
from vitkit.train.objectives.base import Objective
from vitkit.train.plan import Plan, largest_divisor
from vitkit.train.training_transform import training_transform


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """Decisions of a run.

    config     its settings, with the decisions that it keeps when it is resumed
    captured   whether a step is a CUDA graph
    workers    processes that decode images
    threads    of the processor that compute
    """

    config: Fit
    plan: Plan
    precision: devices.TrainPrecision
    parallelism: Parallelism
    compilation: CompileDecision
    captured: bool
    cache: CacheChoice
    order: OrderOfEpoch
    workers: int
    threads: int


def decide(
    config: Fit,
    objective: Objective,
    splits: Partition,
    processes: Processes,
    precision: devices.TrainPrecision,
    images: ImagesInMemory,
    *,
    share: int,
    is_new: bool,
) -> Decisions:
    """Decide on this machine, with a few steps for a trial; meanwhile images are decoded and kernels built.

    share   images of a step that each process computes
    """
    model, device = objective.model, processes.device
    kernels = KernelBuild(objective, config.micro or share, device, precision)
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
    estimate = cost(model.config)
    parallelism = pick_parallelism(
        config.parallel, processes.world_size, estimate.state_bytes, devices.free_memory(device)
    )
    captured = cuda_graph.should_capture(config.cuda_graph, objective, plan, processes, precision, parallelism)
    compilation = should_compile(config.compile, objective, plan, processes, precision, parallelism, captured=captured)
    shuffle = pick_shuffle(config.shuffle, len(splits.train), is_new=is_new)
    if is_new:
        # resuming is exact with the same micro-batch and precision
        config = replace(
            config,
            micro=plan.micro,
            precision=precision,
            recompute="yes" if recompute else "no",
            compile="yes" if compilation.compiles else "no",
            cache=cache.memory,
            shuffle=shuffle,
        )
    return Decisions(
        config=config,
        plan=plan,
        precision=precision,
        parallelism=parallelism,
        compilation=compilation,
        captured=captured,
        cache=cache,
        order=order_of(splits.train, shuffle, config.seed, config.shuffle_buffer),
        workers=devices.pick_workers(config.workers, device, devices.processes_sharing_cores()),
        threads=devices.pick_threads(device, estimate.macs),
    )
