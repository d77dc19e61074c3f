"""The share of a job that a process does: what the option and the launchers' environments mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitkit.errors import ConfigError
from vitkit.job_shard import JobShard, job_shard, parse_job_shard

ARRAY = {"SLURM_ARRAY_TASK_ID": "12", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "10"}


@given(items=st.integers(0, 10_000), count=st.integers(1, 200))
def test_every_item_is_in_exactly_one_shard_in_order(items: int, count: int):
    shards = [JobShard(index, count).range(items) for index in range(count)]
    assert [item for shard in shards for item in shard] == [*range(items)]
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.mark.parametrize("text", ["7/7", "0/0", "a/b", "1", "1/", "-1/3", "1/3/5", "", "٣/٧", "1 / 3", "0x1/3"])
def test_a_wrong_shard_is_an_error_with_the_fix(text: str):
    with pytest.raises(ConfigError, match=r"--shard 0/|--shard I/N"):
        parse_job_shard(text)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"RANK": "2", "WORLD_SIZE": "4"}, JobShard(2, 4)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"RANK": "1"}, None),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, JobShard(1, 2)),
        # sbatch's own script is process 0 of the tasks that srun has not started yet
        ({"SLURM_TASKS_PER_NODE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, None),
        (
            {"SLURM_TASKS_PER_NODE": "2", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"},
            JobShard(0, 2),
        ),
        ({"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "2", "SLURM_NTASKS": "8"}, JobShard(2, 3)),  # srun -n 3
        (ARRAY, JobShard(2, 3)),
        ({**ARRAY, "SLURM_ARRAY_TASK_ID": "30", "SLURM_ARRAY_TASK_STEP": "10"}, JobShard(2, 3)),
        ({**ARRAY, "SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, JobShard(9, 12)),
        ({**ARRAY, "RANK": "0", "WORLD_SIZE": "2"}, JobShard(0, 2)),
        ({"RANK": "0", "WORLD_SIZE": "1", **ARRAY}, JobShard(2, 3)),
        ({"JOB_COMPLETION_INDEX": "4", "JOB_COMPLETION_COUNT": "5"}, JobShard(4, 5)),
    ],
)
def test_the_environment_of_a_launcher_names_the_shard(environment: dict[str, str], expected: JobShard | None):
    assert job_shard(None, environment) == expected
    assert job_shard("3/9", environment) == JobShard(3, 9)
    assert job_shard("no", environment) is None


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"JOB_COMPLETION_INDEX": "4"}, "JOB_COMPLETION_COUNT"),
        ({"JOB_COMPLETION_INDEX": "5", "JOB_COMPLETION_COUNT": "5"}, "no shard 5 of 5"),
        ({**ARRAY, "SLURM_ARRAY_TASK_COUNT": "x"}, "SLURM_ARRAY_TASK_COUNT=x"),
        ({**ARRAY, "SLURM_ARRAY_TASK_ID": "17"}, "--array=0-2"),  # --array=10,12,17
    ],
)
def test_an_environment_that_cannot_be_is_an_error_with_the_way_out(environment: dict[str, str], message: str):
    with pytest.raises(ConfigError, match=message) as failed:
        job_shard(None, environment)
    assert "--shard" in str(failed.value)


def test_a_shard_says_where_it_comes_from():
    shard = job_shard(None, {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"})
    assert shard is not None
    assert (str(shard), shard.source) == ("1/2", "SLURM_PROCID, SLURM_STEP_NUM_TASKS")
