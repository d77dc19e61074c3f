"""Batches from reader processes: whole however little shared memory there is, never written over, or an error."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vitkit.data import readers
from vitkit.data.batch import Batch
from vitkit.data.readers import lost_reader, read
from vitkit.data.slots import Slots
from vitkit.data.sources.base import DataError

PICTURES, SIDE = 4, 300


@dataclass
class Shade:
    """A megabyte of one shade, and its number as everything else."""

    killed: int = -1

    def __call__(self, number: int, images: Tensor | None = None) -> Batch:
        if number == self.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        images = like() if images is None else images
        images.fill_(number % 251)
        each = torch.full((PICTURES,), number)
        return Batch(images=images, labels=each, indices=each, epochs=each, failures=((number, "a reason"),))


def like() -> Tensor:
    return torch.empty(PICTURES, 3, SIDE, SIDE, dtype=torch.uint8)


def assert_shaded(batches: list[Batch], first: int = 0) -> None:
    for number, batch in enumerate(batches, first):
        assert batch.images.shape == like().shape
        assert batch.images.unique().tolist() == [number % 251]
        for tensor in (batch.labels, batch.indices, batch.epochs):
            assert tensor.tolist() == [number] * PICTURES
        assert batch.failures == ((number, "a reason"),)


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("forks", [True, False])
def test_what_was_handed_out_is_not_written_to_again(workers: int, forks: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(readers, "FORKS", forks and readers.FORKS)
    assert_shaded(list(read(Shade(), range(40), like(), workers=workers)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("workers", [0, 3])
def test_pinned_batches_are_whole_and_stay_so_while_a_gpu_copies_them(workers: int):
    batches = []
    for batch in read(Shade(), range(60), like(), workers=workers, pin=True):
        assert batch.images.is_pinned()
        assert batch.labels.is_pinned()
        batches.append(batch.to("cuda"))
    assert_shaded([batch.to("cpu") for batch in batches])


def test_a_batch_travels_without_its_pictures_and_is_pinned_out_of_its_place(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Tensor, "pin_memory", Tensor.clone)  # what it does, where there is a GPU
    slots = Slots(2, like())
    sent = pickle.dumps(readers._Tasks(Shade(), slots)[7, slots.take()])
    assert len(sent) < 5_000
    arrived = pickle.loads(sent)
    assert arrived.slots is slots
    pinned = arrived.pin_memory()
    slots[arrived.place].fill_(99)
    assert pinned.out
    assert_shaded([pinned.batch], 7)


def test_reading_ends_where_the_numbers_do_and_takes_its_processes_along():
    assert len(list(read(Shade(), range(3), like(), workers=2))) == 3
    with_more = read(Shade(), itertools.count(7), like(), workers=2)
    assert_shaded([next(with_more)], 7)
    assert len(multiprocessing.active_children()) == 2
    with_more.close()
    assert multiprocessing.active_children() == []


def test_a_reader_that_is_killed_is_an_error_with_a_way_out():
    batches = read(Shade(killed=5), itertools.count(), like(), workers=2)
    try:
        for _ in batches:
            pass
        pytest.fail("nobody noticed")
    except DataError as error:
        told = str(error)
    except RuntimeError as error:  # torch's handler of the signal had this loop at hand; the CLI does as is done here
        told = str(lost_reader(error))
    assert "a reader process has ended before its work" in told
    assert "killed by signal: Killed" in told or "exited unexpectedly" in told
    assert "--workers 0" in told


READ = """
from tests.data.test_readers import Shade, assert_shaded, like
from vitkit.data.readers import read
from vitkit.data.slots import Slots
from vitkit.errors import VitkitError
try:
    assert_shaded(list(read(Shade(), range(40), like(), workers=2)))
    print("whole")
except VitkitError as error:
    print(error)
"""


def reading_after(command: str, *shell: str) -> tuple[str, str]:
    """What a process says, and what it complains of, that is started and reads as a container or a cluster might."""
    done = subprocess.run(
        [*shell, "sh", "-c", f'{command} && exec "$0" -c "$1"', sys.executable, READ],
        text=True,
        capture_output=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def reading_with_shared_memory(size: str) -> tuple[str, str]:
    """As docker run --shm-size has it."""
    command, shell = f"mount -t tmpfs -o size={size} tmpfs /dev/shm", ("unshare", "-rm")
    if shutil.which("unshare") is None or subprocess.run([*shell, "sh", "-c", command], capture_output=True).returncode:
        pytest.skip("needs to mount something: unshare -rm")
    return reading_after(command, *shell)


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm")
def test_shared_memory_that_holds_no_batch_is_enough():
    assert reading_with_shared_memory("256k") == ("whole\n", "")


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm")
def test_shared_memory_without_room_for_a_semaphore_is_an_error_with_a_way_out():
    said, _ = reading_with_shared_memory("4k")  # torch complains too, of its own tidying up
    assert said.startswith("2 reader processes cannot be started: No space left on device.")
    assert "--workers 0" in said
    assert "--shm-size" in said


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, other limits")
@pytest.mark.parametrize("limit", ["ulimit -f 100", "ulimit -n 40"])
def test_limits_on_files_do_not_concern_batches(limit: str):
    assert reading_after(limit) == ("whole\n", "")
