"""The page docs/scale.md: the tables of benchmarks/scale.py with the words around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from scale import (
    BATCH,
    GPUS,
    MEASURED,
    STEPS,
    Cluster,
    Row,
    checkpoint_bytes,
    checkpoint_share,
    job,
    largest_micro_batch,
    memory_gib,
    row,
    schedule_days,
)

from vitkit.cost import cost
from vitkit.model.variants import configure
from vitkit.table6 import JFT_IMAGES

SCHEDULES = (("B/16", 7), ("L/16", 7), ("L/16", 14), ("H/14", 14))  # Table 3 and Table 6 of the paper


def page() -> str:
    cluster = Cluster()
    wide = {model: [row(model, gpus) for gpus in GPUS] for model in MEASURED}
    every = [one for rows in wide.values() for one in rows]
    sections = [
        "# Three hundred million images, 8 to 512 GPUs: on paper",
        "`python benchmarks/scale.py --page` wrote this page. **Nothing here was run on more than one GPU.** The time "
        "of a step on one GPU is measured ([gpu.md](gpu.md)); everything between GPUs, and the storage, is a "
        "simulation with the assumptions at the end. Its limits are compared with closed forms in a test. Read the "
        "figures as where to look first, not as a promise.",
        "## One GPU",
        _one_gpu(),
        f"## The paper's batch of {BATCH:,}",
        f"DDP, {STEPS} simulated steps. Efficiency: images a second over those of as many GPUs at the measured rate. "
        "First limit: what costs the most of the rest, and its share of the time.",
        _table(
            ("model", "GPUs", "images per GPU", "step, ms", "images/s", "efficiency", "MFU", "first limit"),
            map(_wide_cells, every),
        ),
        f"The batch is the first limit. The paper's {BATCH:,} images are 8 for each of 512 GPUs: launches, the "
        "optimizer and the gradients, which do not shrink with the batch, then take more time than the images. With "
        "a batch of 64 per GPU, 32,768 in all, which needs another recipe than the paper's:",
        _table(
            ("model", "GPUs", "images per GPU", "step, ms", "images/s", "efficiency", "MFU", "first limit"),
            (_wide_cells(row(model, 512, batch=512 * 64)) for model in MEASURED),
        ),
        "## Gradients: DDP or FSDP",
        "Bytes that a GPU sends in a step. DDP: fp32 gradients, reduced and gathered. FSDP: bf16 weights, gathered for "
        "the forward and again for the backward pass, and fp32 gradients, reduced: as many bytes. DDP hides them "
        "behind the backward pass; FSDP needs the weights before a block can begin, and has the forward pass to hide "
        "half of them: it is behind until the gradients take longer than the backward pass, at 512 GPUs. The state of "
        "all models of the paper fits into a GPU's memory; FSDP is for g and larger, and for smaller GPUs.",
        _table(
            ("model", "GPUs", "NVLink, MB", "network, MB", "DDP, ms a step", "FSDP, ms a step"),
            (
                (
                    one.model,
                    f"{one.gpus}",
                    f"{one.nvlink_mb:,.0f}",
                    f"{one.network_mb:,.0f}",
                    f"{one.step_ms:,.1f}",
                    f"{row(one.model, one.gpus, sharded=True).step_ms:,.1f}",
                )
                for one in every
            ),
        ),
        "With one card of 100 Gb/s for each node of 8 GPUs, a thirty-second of that network:",
        _table(
            ("model", "GPUs", "step, ms", "efficiency", "first limit"),
            (
                (one.model, f"{one.gpus}", f"{one.step_ms:,.1f}", f"{one.efficiency:.2f}", one.first_limit)
                for one in (
                    row(model, gpus, cluster=replace(cluster, network=cluster.network / 32))
                    for model in MEASURED
                    for gpus in (32, 128)
                )
            ),
        ),
        "## Data",
        f"An image of {cluster.image_bytes / 1e3:.0f} kB as it is stored, decoded at {cluster.decode_rate:,.0f} images "
        "a second and core ([speed.md](speed.md)). 303 million images take "
        f"{JFT_IMAGES * cluster.image_bytes / 1e12:.0f} TB.",
        _table(
            ("model", "GPUs", "images/s and node", "GB/s read by a node", "cores that decode in a node"),
            (
                (
                    one.model,
                    f"{one.gpus}",
                    f"{one.images_per_second * 8 / one.gpus:,.0f}",
                    f"{one.node_gb_per_second:.2f}",
                    f"{one.node_cores:.1f}",
                )
                for one in every
                if one.gpus in (8, 128)
            ),
        ),
        "B/16 is the one that storage and cores can limit: a node that reads 1 GB/s, or has 16 cores for its 8 GPUs, "
        "feeds it at these rates:",
        _table(
            ("node", "B/16", "L/16", "H/14"),
            (
                (name, *(_limited(model, machine) for model in MEASURED))
                for name, machine in (
                    ("reads 1 GB/s", replace(cluster, storage=1e9)),
                    ("decodes on 16 cores", replace(cluster, cores=16)),
                    ("both as assumed", cluster),
                )
            ),
        ),
        "An index of 303 million images is 18 GB on disk, mapped and shared by the processes of a node; "
        "[data.md](data.md) has the measurement. Random reads of single images suit NVMe and object stores; on disks "
        "that seek, `shuffle = shards` keeps the reads of a time within a few tar files.",
        "## Checkpoints",
        "fp32 weights and Adam's two moments. The GPUs wait for the copy to host memory alone; the file is written "
        f"beside training, every {cluster.save_every / 60:.0f} minutes.",
        _table(
            ("model", "size, GB", "copy, s", "written by one, s", "written by 8 (FSDP), s", "share of training"),
            map(_checkpoint_cells, MEASURED),
        ),
        "## How long the paper's schedules take",
        "303 million images, epochs of Table 3, days.",
        _table(
            ("schedule", *(f"{gpus} GPUs" for gpus in GPUS)),
            (
                (f"{model}, {epochs} epochs", *(f"{schedule_days(model, epochs, gpus):.2f}" for gpus in GPUS))
                for model, epochs in SCHEDULES
            ),
        ),
        "## What comes first",
        *_conclusions(wide),
        "## Assumptions",
        *_assumptions(cluster),
    ]
    return "\n\n".join(sections) + "\n"


def _one_gpu() -> str:
    cluster = Cluster()
    return _table(
        (
            "model",
            "parameters",
            "images/s (measured)",
            "MFU",
            "state, GB",
            "8 GPUs, GiB each",
            "512 GPUs, GiB each",
            "images that fit",
        ),
        (
            (
                model,
                f"{cost(configure(model)).parameters / 1e6:,.0f} M",
                f"{one.images_per_second:,.0f} ({one.source}, batch {one.batch})",
                f"{one.images_per_second * 6 * cost(configure(model)).macs / 785e12:.2f}",
                f"{cost(configure(model)).state_bytes / 1e9:.1f}",
                f"{memory_gib(model, 8):.0f}",
                f"{memory_gib(model, 512):.0f}",
                f"{largest_micro_batch(model, cluster):,}",
            )
            for model, one in MEASURED.items()
        ),
    ) + (
        "\n\nState: fp32 weights, gradients and two moments. GiB: state, a bf16 copy of the weights and the "
        f"activations of eager training, in closed form, at {BATCH:,} images over all GPUs; H/14 on 8 GPUs "
        "accumulates gradients over two micro-batches, or recomputes activations."
    )


def _wide_cells(one: Row) -> tuple[str, ...]:
    return (
        one.model,
        f"{one.gpus}",
        f"{one.per_gpu:.0f}",
        f"{one.step_ms:,.1f}",
        f"{one.images_per_second:,.0f}",
        f"{one.efficiency:.2f}",
        f"{one.mfu:.2f}",
        one.first_limit,
    )


def _limited(model: str, cluster: Cluster) -> str:
    one = row(model, 8, cluster=cluster)
    return f"{one.images_per_second:,.0f} images/s, {one.efficiency:.2f}"


def _checkpoint_cells(model: str) -> tuple[str, ...]:
    one, cluster = job(model, 8), Cluster()
    size = checkpoint_bytes(one)
    return (
        model,
        f"{size / 1e9:.1f}",
        f"{size / cluster.host_copy:.2f}",
        f"{size / cluster.write:.1f}",
        f"{size / 8 / cluster.write:.1f}",
        f"{checkpoint_share(one):.3%}",
    )


def _conclusions(wide: dict[str, list[Row]]) -> list[str]:
    falls = [
        f"{model} from {next((one.gpus for one in rows if one.efficiency < 0.8), 'more than 512')}"
        for model, rows in wide.items()
    ]
    storage = max((rows[0] for rows in wide.values()), key=lambda one: one.node_gb_per_second)
    slow = row(storage.model, 8, cluster=replace(Cluster(), storage=1e9))
    return [
        f"1. **The batch.** At {BATCH:,} images, efficiency is below 0.8 for {', '.join(falls)} GPUs on.\n"
        f"2. **Storage and cores, for small models.** {storage.model} reads {storage.node_gb_per_second:.1f} GB/s on a "
        f"node and needs {storage.node_cores:.0f} cores; at 1 GB/s it has {slow.efficiency:.0%} of its rate. L/16 and "
        "H/14 need a third and a tenth of that.\n"
        "3. **Gradients**, where nodes have less than a card for each GPU, or more than some hundred GPUs share the "
        "paper's batch.\n"
        "4. Memory, for H/14 on 8 GPUs: 512 images each take two micro-batches. Checkpoints and the index limit none "
        "of these models."
    ]


def _assumptions(cluster: Cluster) -> list[str]:
    return [
        "- A step of b images takes what was measured at the measured batch, of which a part does not shrink with b: "
        "per block three times what a forward pass of one image takes beyond its arithmetic (B/16 as a CUDA graph, "
        "0.57 ms), and AdamW's 30 bytes a parameter. Larger batches are no faster than what was measured.\n"
        f"- {cluster.per_node} GPUs a node; NVLink {cluster.nvlink / 1e9:.0f} GB/s and network "
        f"{cluster.network / 1e9:.0f} GB/s for each GPU and direction, 80 % of an H200's and of a 400 Gb/s card; "
        f"{1e6 * cluster.nvlink_latency:.0f} and {1e6 * cluster.network_latency:.0f} µs for each of log2(members) "
        "steps of a collective.\n"
        f"- DDP reduces {cluster.bucket / 2**20:.0f} MiB at a time, one after another, as the backward pass (two "
        "thirds of a step) makes them; first within nodes, then between them, without overlap of the two. FSDP "
        "gathers one block ahead. Collectives take no compute from the GPU.\n"
        f"- A GPU's time varies by {cluster.jitter:.0%} (normal, independent) from step to step, and all wait for the "
        "slowest.\n"
        f"- A node has {cluster.cores} cores for data workers and reads {cluster.storage / 1e9:.0f} GB/s; "
        f"{cluster.prefetch} batches are loaded ahead.\n"
        f"- {cluster.host_copy / 1e9:.0f} GB/s from a GPU to host memory, {cluster.write / 1e9:.0f} GB/s to storage by "
        "each writer.\n"
        "- Not modelled: failures and restarts, network congestion, validation, the time to start."
    ]


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    cells = ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]
    return "\n".join([*cells, *("| " + " | ".join(line) + " |" for line in lines)])
