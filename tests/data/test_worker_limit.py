"""Limits on processes, threads and open files: fewer data workers load every batch, and a note says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vitkit.data import worker_limit
from vitkit.data.worker_limit import startable_tasks, startable_workers

linux = pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")

# root has no limit on processes: the process becomes another user once everything is imported
LOAD_LIMITED = """
import os, resource, sys
import numpy.random  # which workers would import
from tests.data.test_workers import GreyBatches, assert_grey, like
from vitkit.data.workers import load_batches

def tasks_of(user):
    count = 0
    for process in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{process}").st_uid == user:
                count += len(os.listdir(f"/proc/{process}/task"))
        except OSError:
            continue
    return count

limit, allowed = sys.argv[1], int(sys.argv[2])
list(load_batches(GreyBatches(), range(2), like(), workers=1))
if limit == "NPROC" and os.getuid() == 0:
    try:
        os.setresuid(*[50_000 + os.getpid() % 10_000] * 3)
    except OSError:
        sys.exit(77)
if limit == "NPROC":
    allowed += tasks_of(os.getuid())
resource.setrlimit(getattr(resource, f"RLIMIT_{limit}"), (allowed, allowed))
assert_grey(list(load_batches(GreyBatches(), range(40), like(), workers=8)))
print("complete")
"""


@linux
@pytest.mark.parametrize(
    ("limit", "allowed", "told"),
    [
        ("NPROC", 11, "load the images instead"),
        ("NPROC", 2, "the main process loads the images instead"),
        ("NOFILE", 45, "load the images instead"),
        ("NOFILE", 16, "the main process loads the images instead"),
    ],
)
def test_every_batch_arrives_however_few_workers_can_be_started(limit: str, allowed: int, told: str):
    done = subprocess.run(
        [sys.executable, "-c", LOAD_LIMITED, limit, str(allowed)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode == 77:
        pytest.skip("root cannot become another user here")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "complete\n"
    assert done.stderr.startswith("8 data workers cannot be started: the limit on ")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_a_limit_all_workers_start_and_no_thread_stays():
    before = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 0
    assert startable_workers(5) == 5
    assert startable_tasks(30) == 30
    assert not before or len(os.listdir("/proc/self/task")) <= before  # threads of earlier tests may have ended


@linux
def test_the_soft_limit_on_open_files_is_raised_where_that_is_allowed():
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 10, before[1]))
        assert worker_limit.startable_workers(4) == 4
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
