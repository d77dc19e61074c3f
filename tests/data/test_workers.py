"""Batches from data workers: complete however little shared memory there is, never overwritten, or an error."""

from __future__ import annotations

import contextlib
import gc
import itertools
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from vitkit.data import workers as workers_module
from vitkit.data.batch import Batch
from vitkit.data.shared_buffers import SharedBuffers
from vitkit.data.sources.dataset import DataError
from vitkit.data.workers import load_batches, lost_worker

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores

IMAGES, SIDE = 4, 300


@dataclass
class GreyBatches:
    """A batch function: a megabyte of one grey level, and the batch number as everything else."""

    killed: int = -1
    raises: int = -1

    def __call__(self, number: int, images: Tensor | None = None) -> Batch:
        if number == self.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == self.raises:
            raise RuntimeError("a bug in the batch function")
        images = like() if images is None else images
        images.fill_(number % 251)
        each = torch.full((IMAGES,), number)
        return Batch(images=images, labels=each, indices=each, epochs=each, failures=((number, "a reason"),))


def like() -> Tensor:
    return torch.empty(IMAGES, 3, SIDE, SIDE, dtype=torch.uint8)


def assert_grey(batches: list[Batch], first: int = 0) -> None:
    for number, batch in enumerate(batches, first):
        assert batch.images.shape == like().shape
        assert batch.images.unique().tolist() == [number % 251]
        for tensor in (batch.labels, batch.indices, batch.epochs):
            assert tensor.tolist() == [number] * IMAGES
        assert batch.failures == ((number, "a reason"),)


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("forks", [True, False])
def test_workers_do_not_overwrite_batches_that_were_handed_out(
    workers: int, forks: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(workers_module, "CAN_FORK", forks and workers_module.CAN_FORK)
    assert_grey(list(load_batches(GreyBatches(), range(40), like(), workers=workers)))


class FreedHere:
    """An object that only the process that made it may free, as a CUDA graph, in a cycle with itself."""

    def __init__(self, log: Path):
        self.log, self.made_in, self.myself = log, os.getpid(), self

    def __del__(self) -> None:
        with self.log.open("a") as file:
            file.write(f"{os.getpid() == self.made_in}\n")


@dataclass
class CollectingBatches(GreyBatches):
    def __call__(self, number: int, images: Tensor | None = None) -> Batch:
        gc.collect()
        return super().__call__(number, images)


def test_workers_do_not_free_what_the_main_process_has_made(tmp_path: Path):
    gc.collect()
    gc.disable()
    try:
        FreedHere(tmp_path / "log")  # garbage from now on
        assert_grey(list(load_batches(CollectingBatches(), range(8), like(), workers=2)))
    finally:
        gc.enable()
    gc.collect()
    assert (tmp_path / "log").read_text() == "True\n"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("workers", [0, 3])
def test_pinned_batches_are_not_overwritten_while_a_gpu_copies_them(workers: int):
    batches = []
    for batch in load_batches(GreyBatches(), range(60), like(), workers=workers, pin_memory=True):
        assert batch.images.is_pinned()
        assert batch.labels.is_pinned()
        batches.append(batch.to("cuda"))
    assert_grey([batch.to("cpu") for batch in batches])


def test_a_batch_is_pickled_without_its_images_and_pinning_copies_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Tensor, "pin_memory", Tensor.clone)  # works without a GPU
    buffers = SharedBuffers(2, like())
    sent = pickle.dumps(workers_module._BatchDataset(GreyBatches(), buffers)[7, buffers.acquire()])
    assert len(sent) < 5_000
    received = pickle.loads(sent)
    assert received.buffers is buffers
    pinned = received.pin_memory()
    buffers[received.slot].fill_(99)
    assert pinned.copied
    assert_grey([pinned.batch], 7)


def test_loading_ends_with_the_numbers_and_ends_the_workers():
    others = set(multiprocessing.active_children())  # of earlier tests in this process
    assert len(list(load_batches(GreyBatches(), range(3), like(), workers=2))) == 3
    endless = load_batches(GreyBatches(), itertools.count(7), like(), workers=2)
    assert_grey([next(endless)], 7)
    assert len(set(multiprocessing.active_children()) - others) == 2
    endless.close()
    assert set(multiprocessing.active_children()) <= others


def test_a_killed_worker_is_an_error_with_a_remedy():
    batches = load_batches(GreyBatches(killed=5), itertools.count(), like(), workers=2)
    try:
        for _ in batches:
            pass
        pytest.fail("the dead worker was not noticed")
    except DataError as error:
        message = str(error)
    except RuntimeError as error:  # torch's SIGCHLD handler interrupted this loop; the CLI handles it like this
        message = str(lost_worker(error))
    assert "a data worker has died" in message
    assert "killed by signal: Killed" in message or "exited unexpectedly" in message
    assert "--workers 0" in message


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGCHLD")
def test_a_worker_that_dies_while_the_main_process_computes_is_recognised_without_the_message():
    others = set(multiprocessing.active_children())  # that earlier tests left behind
    with contextlib.closing(load_batches(GreyBatches(), itertools.count(), like(), workers=2)) as batches:
        next(batches)
        worker = (set(multiprocessing.active_children()) - others).pop()
        kill = f"sleep 0.2; kill -9 {worker.pid}"
        with subprocess.Popen(["sh", "-c", kill]), pytest.raises(RuntimeError) as caught:
            time.sleep(30)  # torch's SIGCHLD handler interrupts it
    caught.value.args = ("another message",)
    assert "a data worker has died" in str(lost_worker(caught.value))


def test_a_dead_worker_is_recognised_by_its_exit_code():
    alive, finished, killed = (SimpleNamespace(exitcode=code) for code in (None, 0, -9))
    error = RuntimeError("another message")
    assert lost_worker(error, [alive, finished]) is None
    assert "a data worker has died" in str(lost_worker(error, [alive, killed]))


def test_torchs_iterator_lists_its_worker_processes():
    """A contract test of the private `_workers`, which lost_worker relies on."""
    batches, _ = workers_module._start_workers(GreyBatches(), range(2), like(), 2, False, 0)
    assert [process.exitcode for process in batches._workers] == [None, None]
    assert len(list(batches)) == 2


def test_an_exception_inside_a_worker_is_not_a_dead_worker():
    with pytest.raises(RuntimeError, match="a bug in the batch function") as caught:
        list(load_batches(GreyBatches(raises=5), range(9), like(), workers=2))
    assert "DataLoader worker process" in str(caught.value)
    assert lost_worker(caught.value) is None


LOAD = """
from tests.data.test_workers import GreyBatches, assert_grey, like
from vitkit.data.workers import load_batches
from vitkit.errors import VitkitError
try:
    assert_grey(list(load_batches(GreyBatches(), range(40), like(), workers=2)))
    print("complete")
except VitkitError as error:
    print(error)
"""


def load_after(command: str, *shell: str) -> tuple[str, str]:
    """Return the stdout and stderr of a process that runs a shell command, such as a limit, and then loads batches."""
    done = subprocess.run(
        [*shell, "sh", "-c", f'{command} && exec "$0" -c "$1"', sys.executable, LOAD],
        text=True,
        capture_output=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def load_with_shared_memory(size: str) -> tuple[str, str]:
    """Limit /dev/shm as docker run --shm-size does."""
    command, shell = f"mount -t tmpfs -o size={size} tmpfs /dev/shm", ("unshare", "-rm")
    if shutil.which("unshare") is None or subprocess.run([*shell, "sh", "-c", command], capture_output=True).returncode:
        pytest.skip("needs permission to mount: unshare -rm")
    return load_after(command, *shell)


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm")
def test_shared_memory_smaller_than_a_batch_is_enough():
    assert load_with_shared_memory("256k") == ("complete\n", "")


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm")
def test_shared_memory_without_room_for_a_semaphore_is_an_error_with_a_remedy():
    output, _ = load_with_shared_memory("4k")  # stderr has torch's own clean-up errors
    assert output.startswith("2 data workers cannot be started: No space left on device.")
    assert "--workers 0" in output
    assert "--shm-size" in output


@pytest.mark.skipif(sys.platform != "linux", reason="Linux limits")
@pytest.mark.parametrize("limit", ["ulimit -f 100", "ulimit -n 40"])
def test_batches_do_not_need_files(limit: str):
    assert load_after(limit) == ("complete\n", "")
