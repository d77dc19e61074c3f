"""The Ray engine: the parts of a job, computed by the actors of a cluster.

The stream through Ray Data is one of part numbers. An actor reads the names of its images, decodes and computes them
and writes the part file; a part that is there is done. So a worker, a node or the driver may die at any time: Ray runs
a lost part again, and the next call continues, with exactly one row for each image.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.compute.batch_size import LARGE
from vitkit.compute.inference import Precision, for_inference
from vitkit.compute.split_logits import SplitLogits
from vitkit.data.failures import allowed_failures, too_many_failures
from vitkit.data.sources.dataset import Split
from vitkit.data.sources.image_paths import open_images
from vitkit.data.sparse_labels import SparseLabels
from vitkit.data.transforms import EvalTransform
from vitkit.devices import pick_device
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.predict.failures import KEPT, Failures
from vitkit.predict.image_stream import ImageTask, stream_outputs
from vitkit.predict.journal import BlockT, Trait
from vitkit.predict.listed_images import IndexedImages, ListedImages, NameSpool, StoredNames, shards_of
from vitkit.predict.part_folder import PartFolder, PartPlan, open_parts
from vitkit.predict.ray_cluster import (
    RayCluster,
    Versions,
    check_versions,
    import_ray,
    own_versions,
    put,
    store_full,
    user_error,
)
from vitkit.predict.resumable_file import RowsJob, images_trait
from vitkit.predict.sharded import JobOutput, locked_parts, put_together
from vitkit.progress import Progress, no_progress
from vitkit.storage.urls import is_url

log = logging.getLogger("vitkit")

MakeJob = Callable[[Model, str], RowsJob[BlockT]]  # of a model, on a device


class PartWriter(Generic[BlockT]):
    """An actor that computes parts and writes them; parts that are there already it only checks."""

    def __init__(
        self,
        make: MakeJob[BlockT],
        model: Sequence[Any],  # one reference to it
        folder: str,
        plan: PartPlan,
        key: str,
        images: ListedImages,
        versions: Versions,
        threads: int,
    ):
        ray, _ = import_ray()
        check_versions(versions, own_versions(), os.uname().nodename)
        job = make(ray.get(model[0]), "auto")
        self.job = replace(job, task=replace(job.task, batch=plan.batch))
        self.folder = PartFolder(folder, plan, key, job.format)
        self.images, self.threads = images, threads

    def __call__(self, batch: Mapping[str, NDArray[np.int64]]) -> dict[str, list[Any]]:
        reports = [self._part(int(part)) for part in batch["part"]]
        return {name: [report[name] for report in reports] for name in ("part", "images", "there", "failed", "first")}

    def _part(self, part: int) -> dict[str, Any]:
        split = self.images.split(self.folder.plan.images_of(part))
        names, there = [*split.keys], True
        errors: Mapping[int, str]
        block = self.folder.read(part, names) if self.folder.exists(part) else None
        if block is None:
            there, format = False, self.job.format
            blocks = [format.block(outputs) for outputs in stream_outputs(self.job.task, split, threads=self.threads)]
            self.folder.write(part, names, blocks)
            errors = _errors(blocks)
        else:
            errors = block.errors
        first = [(names[row], errors[row]) for row in sorted(errors)[:KEPT]]
        return {
            "part": part,
            "images": len(names),
            "there": there,
            "failed": len(errors),
            "first": json.dumps(first),
        }


def write_on_ray(
    output: JobOutput,
    make: MakeJob[BlockT],
    model: Model,
    sources: Sequence[str],
    cluster: RayCluster,
    *,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> tuple[int, Failures]:
    """Write a row for each image of the sources on the cluster: part files in a folder, or one file.

    Return how many were complete already, and the images that failed.
    """
    job = make(model, "cpu")
    output = replace(output, folder=_on_every_node(output.folder))
    if overwrite:
        output.file.delete()
    else:
        output.refuse_complete(job.format.sidecars(output.file.path))
    images, trait, store = _list(sources)
    batch = LARGE if cluster.gpus else job.task.batch
    traits = {**job.traits, "images": trait}
    folder = open_parts(output.folder, traits, images, batch, job.format, overwrite=overwrite)
    listed = store(output.folder)
    everything = range(len(folder.plan))
    with locked_parts(folder, everything, output.folder):
        arguments = {"make": make, "folder": output.folder, "plan": folder.plan, "key": folder.key, "images": listed}
        before, failures = 0, Failures(images)
        parts = [{"part": part} for part in everything]
        reports = _run(PartWriter, arguments, model, parts, cluster)
        for report in progress(reports, images, job.task.doing, lambda row: int(row["images"])):
            before += report["images"] * report["there"]
            first = json.loads(report["first"])
            for name, error in first:
                failures.add(name, error)
            failures.failed += report["failed"] - len(first)
        if missing := folder.missing(everything):
            raise ConfigError(
                f"{len(missing):,} of {len(everything):,} parts are not in {folder.parts.where}.",
                try_="an --out that all nodes share, such as a network file system",
            )
        folder.delete_foreign()
    split = None if output.is_folder else listed.split(range(images))
    if isinstance(listed, StoredNames):
        listed.delete()
    if split is not None:
        put_together(output, replace(job, task=replace(job.task, batch=batch)), split, progress=progress)
    return before, failures


def collect_logits_on_ray(
    cluster: RayCluster,
    model: Model,
    split: Split,
    *,
    precision: Precision = "fp32",
    batch: int | None = None,
    max_failed: float,
    progress: Progress = no_progress,
) -> SplitLogits:
    """Compute a model's logits for every image of a split on the cluster, as `collect_logits` does in one process."""
    plan = PartPlan.of(len(split), batch or (LARGE if cluster.gpus else 64))
    arguments = {"split": [put(split)], "batch": plan.batch, "precision": precision}
    ranges = [{"first": images.start, "stop": images.stop} for images in map(plan.images_of, range(len(plan)))]
    parts: dict[int, tuple[NDArray[np.int64], NDArray[np.float32]]] = {}
    failures: dict[int, str] = {}
    reports = _run(LogitsComputer, arguments, model, ranges, cluster)
    for report in progress(reports, len(split), "evaluating", lambda row: int(row["stop"] - row["first"])):
        indices = np.frombuffer(report["indices"], np.int64)
        parts[int(report["first"])] = (
            indices,
            np.frombuffer(report["logits"], np.float32).reshape(len(indices), model.config.classes),
        )
        for row, error in json.loads(report["failures"]):
            failures[row] = error
            log.warning("skipped: %s: %s", split.keys[row], error)
        if len(failures) > allowed_failures(len(split), max_failed):
            shown = [f"{split.keys[row]}: {error}" for row, error in [*failures.items()][:5]]
            raise too_many_failures(len(failures), len(split), max_failed, shown)
    ordered = [parts[first] for first in sorted(parts)]
    read = np.concatenate([indices for indices, _ in ordered]) if ordered else np.empty(0, np.int64)
    logits = [rows for _, rows in ordered]
    labels = split.labels[read]
    return SplitLogits(
        torch.from_numpy(np.concatenate(logits)) if logits else torch.empty(0, model.config.classes),
        labels if isinstance(labels, SparseLabels) else torch.from_numpy(labels),
        torch.from_numpy(read),
        dict(sorted(failures.items())),
    )


class LogitsComputer:
    """An actor that computes the logits of ranges of a split."""

    def __init__(
        self,
        model: Sequence[Any],
        split: Sequence[Any],
        batch: int,
        precision: Precision,
        versions: Versions,
        threads: int,
    ):
        ray, _ = import_ray()
        check_versions(versions, own_versions(), os.uname().nodename)
        loaded, self.split, self.threads = ray.get(model[0]), ray.get(split[0]), threads
        device = pick_device("auto")
        forward = for_inference(loaded.eval().to(device), precision)
        self.task = ImageTask(
            doing="evaluating",
            transform=EvalTransform(image=loaded.config.image, preprocessing=loaded.metadata.preprocessing),
            channels=loaded.config.channels,
            device=device,
            batch=batch,
            compute=lambda images: (forward(images).float(),),
        )

    def __call__(self, batch: Mapping[str, NDArray[np.int64]]) -> dict[str, list[Any]]:
        [first], [stop] = batch["first"].tolist(), batch["stop"].tolist()
        chosen, indices, logits, failures = self.split.select(np.arange(first, stop)), [], [], []
        with torch.inference_mode():
            for outputs in stream_outputs(self.task, chosen, threads=self.threads):
                failures += [(first + outputs.first + row, error) for row, error in outputs.errors.items()]
                if outputs.outputs is not None:
                    indices.append(first + outputs.first + outputs.rows)
                    logits.append(outputs.outputs[0])
        return {
            "first": [first],
            "stop": [stop],
            "indices": [np.concatenate(indices).tobytes() if indices else b""],
            "logits": [np.concatenate(logits).astype(np.float32).tobytes() if logits else b""],
            "failures": [json.dumps(failures)],
        }


def _run(
    actor: type[Any], arguments: Mapping[str, Any], model: Model, items: list[dict[str, Any]], cluster: RayCluster
) -> Iterator[dict[str, Any]]:
    """Yield what the actors return for each item, in the order of their completion."""
    ray, data = import_ray()
    if not items:
        return
    held = put(model.to("cpu").eval())  # the driver keeps it: actors that are started again need it, too
    actors = min(cluster.models, len(items))
    dataset = data.from_items(items, override_num_blocks=len(items)).map_batches(
        actor,
        batch_size=1,
        fn_constructor_kwargs={
            **arguments,
            "model": [held],
            "versions": own_versions(),
            "threads": cluster.cores - 1,
        },
        num_cpus=cluster.cores,
        num_gpus=cluster.gpus or None,
        compute=data.ActorPoolStrategy(min_size=1, max_size=actors, initial_size=actors),
    )
    try:
        yield from dataset.iter_rows()
    except Exception as error:
        if (known := user_error(error)) is not None:
            raise ConfigError(*known.args) from None
        if (full := store_full(error)) is not None:
            raise full from None
        if isinstance(error, ray.exceptions.RayError):
            raise ConfigError(f"the Ray workers have failed: {str(error).strip()[-500:]}") from None
        raise


def _errors(blocks: Sequence[BlockT]) -> Mapping[int, str]:
    errors, first = dict[int, str](), 0
    for block in blocks:
        errors |= {first + row: error for row, error in block.errors.items()}
        first += len(block)
    return errors


def _on_every_node(name: str) -> str:
    """Return a path as workers see it whose working directory is another; a URL is the same everywhere."""
    return name if is_url(name) else os.path.abspath(name)


def _list(sources: Sequence[str]) -> tuple[int, Trait, Callable[[str], ListedImages]]:
    """Return the number of images, their names as a trait, and a function that makes the list for an output folder."""
    if (shards := shards_of(sources)) is not None:
        split = open_images([shards])
        images, trait = len(split), images_trait(split.keys)
        return images, trait, lambda folder: IndexedImages(_on_every_node(shards), images)
    spool = NameSpool(sources)
    return spool.count, spool.trait, spool.store
