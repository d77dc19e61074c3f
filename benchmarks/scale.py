"""Pre-training on 300 million images with 8 to 512 GPUs, on paper: a simulation of a step, and its closed forms.

    python benchmarks/scale.py [--page] [--json]        --page writes docs/scale.md

Nothing here was run on more than one GPU. Compute is that of one measured GPU (docs/gpu.md); everything between GPUs is
a model, with the assumptions in `Cluster`. A step is simulated for `STEPS` steps:

    compute    each GPU takes the time of its images, times a random factor; all wait for the slowest
    gradients  DDP: as the backward pass goes on, buckets of gradients become ready, and one stream reduces one after
               another: over NVLink within a node, over the network between nodes, with each GPU's own network card.
               FSDP: weights of a block are gathered before its forward and its backward, one block ahead, and its
               gradients are scattered after it
    loader     batches come at the rate of the node's cores or of its storage, a few ahead
    checkpoint the GPU waits for the copy to host memory; the file is written beside training, and the next checkpoint
               waits for it

tests/test_scale.py compares its limits with closed forms: one GPU, an infinite network, no compute, a slow loader.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from vitkit.cost import FLOPS_PER_TRAINED_MAC, cost
from vitkit.model.variants import configure
from vitkit.table6 import JFT_IMAGES

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
GPUS = (8, 32, 128, 512)
BATCH = 4096  # of the paper's pre-training (Table 3)
STEPS, WARM_UP = 200, 20  # steps that are simulated, and before them, until the loader's lead is used up
GIB = 2**30
BACKWARD = 2 / 3  # of the compute of a step
CEILING = 785e12  # FLOP/s of a bf16 matrix product, docs/gpu.md


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One training step of a model on one H200, from docs/gpu.md and docs/speed.md."""

    images_per_second: float
    batch: int
    peak_gib: float
    source: str


MEASURED = {
    "B/16": Measured(images_per_second=4401, batch=256, peak_gib=12.1, source="compiled"),
    "L/16": Measured(images_per_second=1355, batch=128, peak_gib=18.5, source="compiled"),
    "H/14": Measured(images_per_second=422, batch=64, peak_gib=23.7, source="eager"),
}
# a forward pass of one B/16 image as a CUDA graph takes 0.57 ms, where its arithmetic takes 0.07: what does not shrink
# with the batch, for each of 12 blocks, and three times as much with the backward pass
FIXED_PER_BLOCK = 3 * (0.57e-3 - 1 / 14_945) / 12
OPTIMIZER_BYTES = 30  # a parameter in fused AdamW: weight and moments read and written, gradient and bf16 copy
MEMORY_RATE = 4.0e12  # bytes a second of fused AdamW, docs/speed.md


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What is assumed of the machines; nothing of it was measured by us but the cores' rate."""

    per_node: int = 8
    memory: float = 139 * GIB  # of a GPU, H200
    nvlink: float = 360e9  # bytes a second and GPU in each direction, 80 % of 450 GB/s
    network: float = 40e9  # bytes a second and GPU in each direction, 80 % of a 400 Gb/s card
    nvlink_latency: float = 5e-6  # seconds of a step of a collective within a node
    network_latency: float = 12e-6  # and between nodes
    bucket: float = 25 * 2**20  # bytes of gradients that DDP reduces at a time
    jitter: float = 0.01  # standard deviation of a GPU's compute time, from step to step
    cores: int = 128  # of a node, for data workers
    decode_rate: float = 806.0  # images of 500 x 400 a second and core, docs/speed.md
    image_bytes: float = 110e3  # an encoded image
    storage: float = 5e9  # bytes a second that a node reads from its file system or object store
    prefetch: int = 2  # batches that are loaded ahead
    host_copy: float = 25e9  # bytes a second from a GPU to host memory
    write: float = 2e9  # bytes a second of a checkpoint to storage, by one writer
    save_every: float = 600.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training run: what a GPU computes in a step, and what it exchanges."""

    parameters: float
    blocks: int
    compute: float  # seconds of a step on one GPU, optimizer included
    per_gpu: float  # images
    gpus: int
    cluster: Cluster = field(default_factory=Cluster)
    sharded: bool = False  # FSDP

    @property
    def nodes(self) -> int:
        return -(-self.gpus // self.cluster.per_node)

    @property
    def in_node(self) -> int:
        return min(self.gpus, self.cluster.per_node)


def job(model: str, gpus: int, *, batch: int = BATCH, cluster: Cluster | None = None, sharded: bool = False) -> Job:
    """Return the job of a model with a global batch; its time per image is the measured one."""
    config, measured = configure(model), MEASURED[model]
    parameters, blocks = cost(config).parameters, config.depth  # type: ignore[union-attr]
    fixed = FIXED_PER_BLOCK * blocks + OPTIMIZER_BYTES * parameters / MEMORY_RATE
    per_image = (measured.batch / measured.images_per_second - fixed) / measured.batch
    per_gpu = batch / gpus
    return Job(
        parameters=parameters,
        blocks=blocks,
        compute=max(fixed + per_gpu * per_image, per_gpu / measured.images_per_second),  # no faster than was measured
        per_gpu=per_gpu,
        gpus=gpus,
        cluster=cluster or Cluster(),
        sharded=sharded,
    )


def ring(size: float, members: int, rate: float, latency: float) -> float:
    """Return the seconds of a reduce-scatter or an all-gather of `size` bytes: each member sends all parts but one."""
    return 0.0 if members < 2 else (members - 1) / members * size / rate + math.ceil(math.log2(members)) * latency


def scatter_time(size: float, job: Job) -> float:
    """Return the seconds of a reduce-scatter or an all-gather over all GPUs, first within nodes, then between them."""
    cluster = job.cluster
    inside = ring(size, job.in_node, cluster.nvlink, cluster.nvlink_latency)
    between = ring(size / job.in_node, job.nodes, cluster.network, cluster.network_latency)
    return inside + between


def all_reduce_time(size: float, job: Job) -> float:
    return 2 * scatter_time(size, job)


def sent_bytes(job: Job) -> tuple[float, float]:
    """Return the bytes that a GPU sends in a step, over NVLink and over the network."""
    # DDP: fp32 gradients, scattered and gathered; FSDP: bf16 weights gathered twice, fp32 gradients scattered
    size = job.parameters * (8 if not job.sharded else 2 + 2 + 4)
    inside = (job.in_node - 1) / job.in_node * size
    return inside, (job.nodes - 1) / job.nodes * size / job.in_node


def loader_rate(cluster: Cluster) -> tuple[float, float]:
    """Return the images a second that a node's cores decode, and that its storage delivers."""
    return cluster.cores * cluster.decode_rate, cluster.storage / cluster.image_bytes


@dataclass
class Timeline:
    """The seconds of a simulated run, in parts."""

    steps: int = 0
    seconds: float = 0.0  # in all: the parts below
    compute: float = 0.0
    stragglers: float = 0.0
    communication: float = 0.0  # that no compute hides
    data: float = 0.0
    checkpoints: float = 0.0

    def images_per_second(self, job: Job) -> float:
        return self.steps * job.per_gpu * job.gpus / self.seconds


def simulate(job: Job, steps: int = STEPS, seed: int = 0, *, checkpoints: bool = True) -> Timeline:
    """Simulate so many steps; checkpoints take their share of the time besides."""
    random, line, cluster = np.random.default_rng(seed), Timeline(steps), job.cluster
    batch_seconds = job.per_gpu * job.in_node / min(loader_rate(cluster))
    ready, now = [0.0], 0.0  # when each batch is loaded; loading pauses while enough are waiting
    started: list[float] = []
    for step in range(-WARM_UP, steps):
        if step == 0:
            began = now
        data = max(ready[-1] - now, 0.0)
        now += data
        started.append(now)
        slowest = job.compute * max(1.0, float((1 + cluster.jitter * random.standard_normal(job.gpus)).max()))
        exposed = exposed_communication(job, slowest)
        now += slowest + exposed
        # a worker goes on with the next batch once one of those ahead has been taken
        taken = started[max(len(started) - cluster.prefetch, 0)]
        ready.append(max(ready[-1], taken) + batch_seconds)
        if step >= 0:
            line.compute += job.compute
            line.stragglers += slowest - job.compute
            line.communication += exposed
            line.data += data
    line.seconds = now - began
    if checkpoints:
        line.checkpoints = checkpoint_share(job) * now
        line.seconds += line.checkpoints
    return line


def exposed_communication(job: Job, compute: float) -> float:
    """Return the seconds of a step in which a GPU waits for gradients or weights."""
    return _exposed_fsdp(job, compute) if job.sharded else _exposed_ddp(job, compute)


def _exposed_ddp(job: Job, compute: float) -> float:
    size = 4 * job.parameters
    count = max(math.ceil(size / job.cluster.bucket), 1)
    cost_of_bucket = all_reduce_time(size / count, job)
    backward = BACKWARD * compute
    start, end = compute - backward, 0.0
    for bucket in range(count):
        ready = start + backward * (bucket + 1) / count
        end = max(end, ready) + cost_of_bucket
    return max(end - compute, 0.0) if job.gpus > 1 else 0.0


def _exposed_fsdp(job: Job, compute: float) -> float:
    if job.gpus == 1:
        return 0.0
    block = job.parameters / job.blocks
    gather, scatter = scatter_time(2 * block, job), scatter_time(4 * block, job)
    forward = (1 - BACKWARD) * compute / job.blocks
    backward = BACKWARD * compute / job.blocks
    stream = now = 0.0  # when the communication stream, and the computation, are free
    stream += gather
    for number in range(job.blocks):  # the next block's weights come while this one computes
        now = max(now, stream) + forward
        if number + 1 < job.blocks:
            stream = max(stream, now - forward) + gather
    for number in range(job.blocks):
        own = stream  # the weights of this block
        now = max(now, own) + backward
        stream = max(stream, now - backward) + (gather if number + 1 < job.blocks else 0.0)
        stream = max(stream, now) + scatter
    return max(now, stream) - compute


def checkpoint_share(job: Job) -> float:
    """Return the seconds for checkpoints per second of training: the copy, and what the writer makes the next wait."""
    size = checkpoint_bytes(job)
    copy = size / (job.gpus if job.sharded else 1) / job.cluster.host_copy
    writers = job.gpus if job.sharded else 1
    late = max(size / writers / job.cluster.write - job.cluster.save_every, 0.0)
    return (copy + late) / job.cluster.save_every


def checkpoint_bytes(job: Job) -> float:
    return 12 * job.parameters  # fp32 weights and Adam's two moments


def memory_gib(model: str, gpus: int, batch: int = BATCH) -> float:
    """Return what a GPU needs under DDP: the state of all parameters, a bf16 copy, activations of its images."""
    estimate = cost(configure(model))
    images = math.ceil(batch / gpus)
    return (
        estimate.state_bytes + 2 * estimate.parameters + estimate.activation_bytes(images, bytes_per_number=2)
    ) / GIB


def largest_micro_batch(model: str, cluster: Cluster) -> int:
    estimate = cost(configure(model))
    return estimate.largest_batch(0.9 * cluster.memory - 2 * estimate.parameters, bytes_per_number=2)


def first_limit(line: Timeline, job: Job, full_rate: float) -> str:
    """Return what costs most of the difference to as many GPUs of the measured rate."""
    small_batch = job.compute - job.per_gpu / full_rate
    parts = {
        "small batch per GPU": max(small_batch, 0.0) * line.steps,
        "stragglers": line.stragglers,
        "gradients": line.communication,
        "data": line.data,
        "checkpoints": line.checkpoints,
    }
    name = max(parts, key=parts.__getitem__)
    return f"{name}, {parts[name] / line.seconds:.0%}"


@dataclass(frozen=True)
class Row:
    model: str
    gpus: int
    per_gpu: float
    step_ms: float
    images_per_second: float
    efficiency: float  # of as many GPUs at the measured rate
    mfu: float
    first_limit: str
    node_gb_per_second: float  # read
    node_cores: float  # that decode
    nvlink_mb: float
    network_mb: float


def row(model: str, gpus: int, *, cluster: Cluster | None = None, batch: int = BATCH, sharded: bool = False) -> Row:
    one = job(model, gpus, batch=batch, cluster=cluster, sharded=sharded)
    line = simulate(one)
    rate = line.images_per_second(one)
    per_node = rate / one.nodes
    inside, between = sent_bytes(one)
    full_rate = MEASURED[model].images_per_second
    flops = FLOPS_PER_TRAINED_MAC * cost(configure(model)).macs
    return Row(
        model=model,
        gpus=gpus,
        per_gpu=one.per_gpu,
        step_ms=1e3 * line.seconds / line.steps,
        images_per_second=rate,
        efficiency=rate / (gpus * full_rate),
        mfu=rate * flops / (gpus * CEILING),
        first_limit=first_limit(line, one, full_rate),
        node_gb_per_second=per_node * one.cluster.image_bytes / 1e9,
        node_cores=per_node / one.cluster.decode_rate,
        nvlink_mb=inside / 1e6,
        network_mb=between / 1e6,
    )


def rows(batch: int = BATCH, sharded: bool = False, cluster: Cluster | None = None) -> list[Row]:
    return [row(model, gpus, batch=batch, sharded=sharded, cluster=cluster) for model in MEASURED for gpus in GPUS]


def schedule_days(model: str, epochs: int, gpus: int) -> float:
    return JFT_IMAGES * epochs / row(model, gpus).images_per_second / 86_400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="write docs/scale.md")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    import scale_page  # which imports this module

    if options.json:
        print(json.dumps([asdict(one) for one in rows()]))
    elif options.page:
        PAGE.write_text(scale_page.page(), encoding="utf-8")
    else:
        print(scale_page.page())


if __name__ == "__main__":
    main()
