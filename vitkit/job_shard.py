"""The share of a job that one process does: I of N, from `--shard I/N` or from what started the process.

Processes that share a job need not talk to each other: each knows its own index and their number, and takes its share
of a list that all of them have. Indices begin at 0, as ranks do.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from vitkit.errors import ConfigError

NO = "no"  # --shard no: all of the job, whatever the environment says
ARRAY_ID, ARRAY_COUNT = "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"
ARRAY_MIN, ARRAY_STEP = "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP"
POD_INDEX, POD_COUNT = "JOB_COMPLETION_INDEX", "JOB_COMPLETION_COUNT"
STEP = ("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS")  # what srun sets, and sbatch alone does not


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

    RANK and WORLD_SIZE come first: torchrun, mpirun wrappers or the user have set them for this very process. Then
    Slurm, whose job array and srun tasks multiply: 10 array tasks of 4 processes are 40 shards. Then Kubernetes.
    """
    for detect in (_ranks, _slurm, _kubernetes):
        shard = detect(environment)
        if shard is not None and shard.count > 1:
            return shard
    return None


def _ranks(environment: Mapping[str, str]) -> JobShard | None:
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    return _shard(_number(environment, "RANK"), _number(environment, "WORLD_SIZE"), "RANK, WORLD_SIZE")


def _slurm(environment: Mapping[str, str]) -> JobShard | None:
    array, tasks = _slurm_array(environment), _slurm_tasks(environment)
    if array is None or tasks is None:
        return array or tasks
    return JobShard(
        array.index * tasks.count + tasks.index, array.count * tasks.count, f"{array.source}, {tasks.source}"
    )


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
    return _shard(index, count, f"{ARRAY_ID}, {ARRAY_COUNT}")


def _slurm_tasks(environment: Mapping[str, str]) -> JobShard | None:
    if "SLURM_PROCID" not in environment or "SLURM_NTASKS" not in environment:
        return None
    # a batch script has the number of tasks too, but is one process itself: srun starts the others
    if "SLURM_JOB_ID" in environment and not any(name in environment for name in STEP):
        return None
    count = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    return _shard(_number(environment, "SLURM_PROCID"), _number(environment, count), f"SLURM_PROCID, {count}")


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
    return _shard(_number(environment, POD_INDEX), _number(environment, POD_COUNT), f"{POD_INDEX}, {POD_COUNT}")


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise ConfigError(f"{name}={text} in the environment is not a number.", try_=f"--shard I/N, or --shard {NO}")
    return int(text)


def _shard(index: int, count: int, source: str) -> JobShard:
    if index >= count:
        raise ConfigError(
            f"{source}: there is no shard {index} of {count}; they are counted from 0.",
            try_=f"--shard I/N, or --shard {NO}",
        )
    return JobShard(index, count, source)
