"""Write data as tar shards in webdataset's naming, with an index for random access (`sources/shards.py` reads it).

Processes, and machines that share a file system, write the tar files of one plan (`shard_plan.py`); whoever finds all
of them complete writes the index (`shard_folder.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vitkit.data.shard_folder import ShardFolder
from vitkit.data.shard_plan import PlannedShard, plan_shards
from vitkit.data.shard_processes import run_tasks
from vitkit.data.sources.dataset import Data, DataError
from vitkit.job_shard import JobShard
from vitkit.progress import Progress, no_progress
from vitkit.text import counted


@dataclass(frozen=True)
class Written:
    """The result of `write_shards`."""

    shards: tuple[str, ...]  # the tar files of all of the data
    before: int  # of them, complete already when it began
    missing: tuple[str, ...]  # of them, not complete now: other processes write them
    downscaled: int | None  # images, where this call wrote the index

    @property
    def finished(self) -> bool:
        return not self.missing


def write_shards(
    data: Data,
    folder: str | os.PathLike[str],
    *,
    megabytes: float = 256,
    side: int | None = None,
    workers: int = 4,
    job: JobShard | None = None,
    progress: Progress = no_progress,
) -> Written:
    """Write every image byte for byte (arrays as .npy) into shards of about `megabytes` each, in `workers` processes.

    With `side`, images whose shorter side is longer are downscaled. With `job`, this process writes its share of the
    tar files, and the index if no other is missing. What an interrupted call has completed is kept.
    """
    plan = plan_shards(data, megabytes=megabytes, side=side, workers=workers)
    target = ShardFolder(Path(folder), plan)
    names = tuple(shard.name for shard in plan.shards)
    with target.opened(job):
        if target.is_finished():
            target.tidy()
            return Written(names, len(names), (), None)
        missing = target.missing()
        mine = missing if job is None else _share(missing, plan.shards, job)
        try:
            _write_all(target, mine, workers, progress)
            left = () if job is None or target.is_finished() else tuple(shard.name for shard in target.missing())
            downscaled = target.finish() if job is None else None if left else target.finish_once()
        except BaseException as error:  # Ctrl-C too
            complete = len(names) - len(target.missing())
            if job is None:  # else others may have begun
                target.forget()
            if isinstance(error, DataError) and complete:
                error.add(
                    then=f"the same command again: {complete:,} of {counted(len(names), 'tar file')} are complete"
                )
            raise
    return Written(names, len(names) - len(missing), left, downscaled)


def _share(missing: list[PlannedShard], every: tuple[PlannedShard, ...], job: JobShard) -> list[PlannedShard]:
    own = {every[number] for number in job.range(len(every))}
    return [shard for shard in missing if shard in own]


def _write_all(target: ShardFolder, shards: list[PlannedShard], workers: int, progress: Progress) -> None:
    processes = min(workers, len(shards))
    write = partial(target.write, threads=max(workers // max(processes, 1), 1))

    def each_image() -> Iterator[None]:
        for count in run_tasks(write, shards, processes):
            yield from (None for _ in range(count))

    for _ in progress(each_image(), sum(map(len, shards)), "writing"):
        pass
