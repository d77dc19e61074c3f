"""Rows for many images from many processes: each computes the parts of its shard, and one puts them together.

Nobody talks to anybody: the output folder says what is done. So a killed process is started again, the number of
processes may change, and whoever puts the parts together computes those that are missing.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitkit import messages
from vitkit.data.sources.dataset import Split
from vitkit.errors import ConfigError
from vitkit.job_shard import JobShard
from vitkit.output_folder import open_output_folder
from vitkit.predict.failures import Failures
from vitkit.predict.image_stream import stream_outputs
from vitkit.predict.journal import BlockT
from vitkit.predict.output_file import OutputFile
from vitkit.predict.part_folder import PartFolder, has_parts, open_parts, remove_parts
from vitkit.predict.resumable_file import RowsJob, images_trait, write_resumable
from vitkit.predict.rows import is_folder
from vitkit.progress import Progress, no_progress
from vitkit.storage.failures import StorageError
from vitkit.storage.urls import is_url, join, normalised, redacted
from vitkit.text import counted

SHOWN = 3  # ranges of missing images that are named


@dataclass(frozen=True)
class JobOutput:
    """The place of the rows of a job: part files in a folder, and in the end all of them in one file.

    `--out answers/` is the folder, and the file is inside it; `--out answers.csv` is the file, with its parts in
    answers.csv.parts until it is complete.
    """

    folder: str
    file: OutputFile
    is_folder: bool  # the user has named the folder, and keeps the parts

    @classmethod
    def of(cls, out: str | os.PathLike[str], file_name: str) -> "JobOutput":
        name = normalised(out)
        if is_folder(out):
            return cls(name, OutputFile.of(join(name, file_name)), True)
        return cls(f"{name}.parts", OutputFile.of(name), False)

    @property
    def in_parts(self) -> bool:
        """Return whether the rows are in parts, unless the command says so anyway."""
        return self.is_folder or has_parts(self.folder)

    def refuse_complete(self, sidecars: Sequence[Path]) -> None:
        """Raise an error where the one file is there already; with parts, it is that of a call which was killed."""
        for path in (self.file.path, *sidecars):
            if self.file.exists(path) and (self.is_folder or not has_parts(self.folder)):
                complete = ", and is complete" if path == self.file.path else ""
                raise ConfigError(
                    f"{self.file.name_of(path)} exists already{complete}; nothing was computed.",
                    try_="another --out, or --overwrite",
                )


def write_rows(
    output: JobOutput,
    job: RowsJob[BlockT],
    split: Split,
    shard: JobShard | None,
    *,
    workers: int = 0,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> tuple[int, Failures]:
    """Write a row for each image, those of a shard or all of them.

    Return how many were complete already, and the images that failed.
    """
    if shard is not None:
        if overwrite:
            raise ConfigError(
                f"--overwrite in shard {shard} would remove the rows of the others.",
                try_=f"--overwrite without shards, or remove {output.folder} first",
            )
        with parts_kept(output):
            return write_shard(output, job, split, shard, workers=workers, progress=progress)
    if not output.in_parts:
        return _write_one_file(output, job, split, workers=workers, overwrite=overwrite, progress=progress)
    with parts_kept(output):
        return put_together(output, job, split, workers=workers, overwrite=overwrite, progress=progress)


@contextlib.contextmanager
def parts_kept(output: JobOutput) -> Iterator[None]:
    """Say what a store that fails leaves: the parts that were written before."""
    try:
        yield
    except StorageError as error:
        error.add(
            kept=f"{redacted(output.folder)}: the complete parts",
            then="the same command without --overwrite computes what is missing",
        )
        raise


def _write_one_file(
    output: JobOutput, job: RowsJob[BlockT], split: Split, *, workers: int, overwrite: bool, progress: Progress
) -> tuple[int, Failures]:
    return write_resumable(output.file, job, split, workers=workers, overwrite=overwrite, progress=progress)


def write_shard(
    output: JobOutput,
    job: RowsJob[BlockT],
    split: Split,
    shard: JobShard,
    *,
    workers: int = 0,
    progress: Progress = no_progress,
) -> tuple[int, Failures]:
    """Compute the parts of one shard that are missing.

    Return how many of its rows were complete already, and the images that failed; their number is that of the shard.
    """
    if not output.in_parts:
        output.refuse_complete(job.format.sidecars(output.file.path))
    folder = _open(output, job, split)
    own = shard.range(len(folder.plan))
    with locked_parts(folder, own, f"shard {shard} of {output.folder}"):
        missing = _missing(folder, split, own)
        compute_parts(folder, job, split, missing, workers=workers, progress=progress)
    failures = Failures(sum(len(folder.plan.images_of(part)) for part in own))
    for names, block in _blocks(folder, split, own):
        failures.add_all(names, block.errors)
    return failures.images - sum(len(folder.plan.images_of(part)) for part in missing), failures


def put_together(
    output: JobOutput,
    job: RowsJob[BlockT],
    split: Split,
    *,
    workers: int = 0,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> tuple[int, Failures]:
    """Check that every image has one row, compute what is missing, and write the one file."""
    sidecars = job.format.sidecars(output.file.path)
    if overwrite:
        output.file.delete()
    else:
        output.refuse_complete(sidecars)
    folder = _open(output, job, split, overwrite=overwrite)
    everything = range(len(folder.plan))
    with locked_parts(folder, everything, output.folder):
        missing = _missing(folder, split, everything)
        before = len(split) - sum(len(folder.plan.images_of(part)) for part in missing)
        if before and missing:
            messages.say("parts", describe_missing(folder, missing))
        compute_parts(folder, job, split, missing, workers=workers, progress=progress)
        folder.delete_foreign()
        failures = Failures(len(split))
        for names, block in _blocks(folder, split, everything):
            failures.add_all(names, block.errors)
        job.format.write(output.file.path, lambda: _batches(folder, split), len(split))
        output.file.publish(sidecars)
    if not output.is_folder:
        remove_parts(output.folder)
        if not is_url(output.folder):
            with contextlib.suppress(OSError):
                _remove_empty(Path(output.folder))
    return before, failures


def compute_parts(
    folder: PartFolder[BlockT],
    job: RowsJob[BlockT],
    split: Split,
    parts: Sequence[int],
    *,
    workers: int = 0,
    progress: Progress = no_progress,
) -> None:
    """Compute parts in their order, each written when its last batch is there."""
    if not parts:
        return
    plan = folder.plan
    # every part but the very last has whole batches, so those of the parts in a row are those of each
    indices = np.concatenate([np.arange(images.start, images.stop) for images in map(plan.images_of, parts)])
    chosen, task = split.select(indices), replace(job.task, batch=plan.batch)
    waiting, begun, remaining = list[BlockT](), 0, list(parts)
    for outputs in stream_outputs(task, chosen, workers=workers, progress=progress):
        waiting.append(job.format.block(outputs))
        done = outputs.first + len(outputs)
        if done - begun == len(plan.images_of(remaining[0])):
            folder.write(remaining[0], [*chosen.keys[begun:done]], waiting)
            waiting, begun = [], done
            remaining.pop(0)


def describe_missing(folder: PartFolder[BlockT], missing: Sequence[int]) -> str:
    """Return which images have no rows yet: "images 640 to 1,279 have no rows yet (10 of 20 parts)"."""
    plan = folder.plan
    ranges: list[tuple[int, int]] = []
    for images in map(plan.images_of, missing):
        if ranges and ranges[-1][1] == images.start:
            ranges[-1] = (ranges[-1][0], images.stop)
        else:
            ranges.append((images.start, images.stop))
    named = ", ".join(f"{first:,} to {stop - 1:,}" for first, stop in ranges[:SHOWN])
    more = f" and {counted(len(ranges) - SHOWN, 'more range')}" if len(ranges) > SHOWN else ""
    total = sum(stop - first for first, stop in ranges)
    return (
        f"{len(plan) - len(missing):,} of {len(plan):,} are complete; computing the missing "
        f"{counted(total, 'image')}: {named}{more}"
    )


def _open(output: JobOutput, job: RowsJob[BlockT], split: Split, *, overwrite: bool = False) -> PartFolder[BlockT]:
    traits = {**job.traits, "images": images_trait(split.keys)}
    return open_parts(output.folder, traits, len(split), job.task.batch, job.format, overwrite=overwrite)


@contextlib.contextmanager
def locked_parts(folder: PartFolder[BlockT], parts: range, what: str) -> Iterator[None]:
    """Hold the lock of these parts; without locks, two processes would write the same bytes twice."""
    with open_output_folder(folder.name).lock(f"parts-{parts.start}-{parts.stop}") as held:
        if not held:
            raise ConfigError(f"another process is writing {what}.", try_="another shard, or wait for it to end")
        yield


def _names(folder: PartFolder[BlockT], split: Split, part: int) -> list[str]:
    images = folder.plan.images_of(part)
    return [*split.keys[images.start : images.stop]]


def _missing(folder: PartFolder[BlockT], split: Split, parts: range) -> list[int]:
    """Return the parts that are not there; those that a disk has damaged are removed, to be computed again."""
    missing = {*folder.missing(parts)}
    for part in parts:
        if part not in missing and folder.read(part, _names(folder, split, part)) is None:
            messages.say(messages.WARNING, f"{folder.part_name(part)} is damaged, and is computed again")
            folder.delete(part)
            missing.add(part)
    return sorted(missing)


def _blocks(folder: PartFolder[BlockT], split: Split, parts: range) -> Iterator[tuple[list[str], BlockT]]:
    for part in parts:
        names = _names(folder, split, part)
        if (block := folder.read(part, names)) is None:
            raise ConfigError(
                f"{folder.parts.where}/{folder.part_name(part)} is damaged.", try_="remove it; then the same command"
            )
        yield names, block


def _batches(folder: PartFolder[BlockT], split: Split) -> Iterator[tuple[list[str], BlockT]]:
    """Yield all rows batch by batch, as one process computes them."""
    for names, block in _blocks(folder, split, range(len(folder.plan))):
        for index, rows in enumerate(folder.batches(block)):
            first = index * folder.plan.batch
            yield names[first : first + len(rows)], rows


def _remove_empty(folder: Path) -> None:
    for path in folder.rglob(".*.lock"):
        path.unlink()
    for path in (*folder.iterdir(), folder):
        if os.path.isdir(path):
            path.rmdir()
