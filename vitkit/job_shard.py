"""The share of a job that one process does: I of N, from `--shard I/N` or from what started the process.

Processes that share a job need not talk to each other: each knows its own index and their number, and takes its share
of a list that all of them have. Indices begin at 0, as ranks do.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from vitkit.errors import ConfigError
from vitkit.launcher import TORCHRUN, launch

NO = "no"  # --shard no: all of the job, whatever the environment says
ARRAY_ID, ARRAY_COUNT = "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"
ARRAY_MIN, ARRAY_STEP = "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP"
POD_INDEX, POD_COUNT = "JOB_COMPLETION_INDEX", "JOB_COMPLETION_COUNT"
VARIABLES = (ARRAY_ID, ARRAY_COUNT, ARRAY_MIN, ARRAY_STEP, POD_INDEX, POD_COUNT)  # beside those of launchers


@dataclass(frozen=True)
class JobShard:
    index: int  # from 0
    count: int
    source: str = field(default="--shard", compare=False)  # what it was read from, for messages

    def range(self, items: int) -> range:
        """Return this shard's part of `items` in a row; the parts of all shards differ by one item at most."""
        return range(self.index * items // self.count, (self.index + 1) * items // self.count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def job_shard(option: str | None, environment: Mapping[str, str] = os.environ) -> JobShard | None:
    """Return the shard that `--shard` names, or else the environment; None is all of the job."""
    if option is None:
        return detect_job_shard(environment)
    return None if option == NO else parse_job_shard(option)


def parse_job_shard(text: str) -> JobShard:
    """Parse I/N, the shard I of N."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
    if match is None:
        raise ConfigError(f"--shard {text}: I/N is needed, two whole numbers.", try_=f"--shard 0/8, or --shard {NO}")
    index, count = int(match[1]), int(match[2])
    if not count:
        raise ConfigError(f"--shard {text}: a job has 1 shard or more.", try_="--shard 0/1")
    if index >= count:
        raise ConfigError(
            f"--shard {text}: shards are counted from 0, so the last of {count:,} is {count - 1}/{count}.",
            try_=f"--shard 0/{count} to --shard {count - 1}/{count}",
        )
    return JobShard(index, count)


def detect_job_shard(environment: Mapping[str, str]) -> JobShard | None:
    """Return the shard that the environment describes, or None where this process is the only one.

    A launcher's ranks come first. Those of srun and mpirun multiply with the tasks of a Slurm array: 10 array tasks of
    4 processes are 40 shards. RANK and WORLD_SIZE do not: whoever sets them by hand may have counted the array already.
    """
    ranks, array = _ranks(environment), _slurm_array(environment)
    if ranks is None:
        shard = array
    elif array is None or launch(environment).launcher is TORCHRUN:
        shard = ranks
    else:
        count = array.count * ranks.count
        shard = JobShard(array.index * ranks.count + ranks.index, count, f"{array.source}, {ranks.source}")
    return shard or _kubernetes(environment)


def _ranks(environment: Mapping[str, str]) -> JobShard | None:
    here = launch(environment)
    if here.launcher is None or here.world_size == 1:
        return None
    return JobShard(here.rank, here.world_size, f"{here.launcher.rank}, {here.launcher.world_size}")


def _slurm_array(environment: Mapping[str, str]) -> JobShard | None:
    if ARRAY_ID not in environment or ARRAY_COUNT not in environment:
        return None
    task, count = _number(environment, ARRAY_ID), _number(environment, ARRAY_COUNT)
    first = _number(environment, ARRAY_MIN) if ARRAY_MIN in environment else 0
    step = _number(environment, ARRAY_STEP) if ARRAY_STEP in environment else 1
    index, uneven = divmod(task - first, max(step, 1))
    if uneven or not 0 <= index < count:
        raise ConfigError(
            f"the ids of this Slurm array are not evenly spaced: {ARRAY_ID}={task} is not one of {count} ids from "
            f"{first} in steps of {step}.",
            try_=f"sbatch --array=0-{max(count - 1, 0)}, or --shard I/N",
        )
    return JobShard(index, count, f"{ARRAY_ID}, {ARRAY_COUNT}") if count > 1 else None


def _kubernetes(environment: Mapping[str, str]) -> JobShard | None:
    if POD_INDEX not in environment:
        return None
    if POD_COUNT not in environment:
        raise ConfigError(
            f"{POD_INDEX}={environment[POD_INDEX]}, but Kubernetes does not tell how many pods share the job.",
            try_=[
                f"{POD_COUNT} in the pod's env, the same number as `completions`",
                f'--shard "${POD_INDEX}/N", or --shard {NO} for all of the job in this pod',
            ],
        )
    index, count = _number(environment, POD_INDEX), _number(environment, POD_COUNT)
    if index >= count:
        raise ConfigError(
            f"{POD_INDEX}, {POD_COUNT}: there is no shard {index} of {count}; they are counted from 0.",
            try_=f"--shard I/N, or --shard {NO}",
        )
    return JobShard(index, count, f"{POD_INDEX}, {POD_COUNT}") if count > 1 else None


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise ConfigError(f"{name}={text} in the environment is not a number.", try_=f"--shard I/N, or --shard {NO}")
    return int(text)
