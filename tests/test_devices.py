"""Device, precision, data workers and threads are chosen for the machine; a missing device is an error."""

from __future__ import annotations

import os

import pytest
import torch

from vitkit import devices
from vitkit.devices import (
    describe_device,
    free_memory,
    pick_device,
    pick_precision,
    pick_threads,
    pick_workers,
    use_threads,
)
from vitkit.errors import ConfigError

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch report two GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("name", "index"), [("auto", 0), ("cuda", 0), ("cuda:1", 1)])
def test_a_gpu_is_taken_where_there_is_one(name: str, index: int):
    assert pick_device(name) == torch.device("cuda", index)


@pytest.mark.usefixtures("two_gpus")
def test_each_process_takes_its_own_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match="cuda:2: this machine has 2 CUDA devices"):
        pick_device("auto")


@pytest.mark.parametrize(
    ("visible", "local_rank", "index"),
    [(4, 3, 3), (1, 3, 0), (2, 3, 1)],  # no binding, --gpus-per-task=1, --gpus-per-task=2
)
def test_a_process_of_srun_takes_a_gpu_that_it_sees(
    visible: int, local_rank: int, index: int, two_gpus: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    for name, value in (("SLURM_PROCID", 3), ("SLURM_STEP_NUM_TASKS", 4), ("SLURM_LOCALID", local_rank)):
        monkeypatch.setenv(name, str(value))
    assert pick_device("auto") == torch.device("cuda", index)


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_it_is_the_cpu():
    assert pick_device("auto") == pick_device("cpu") == CPU
    assert free_memory(CPU) > 0


@pytest.mark.parametrize(("threads", "description"), [(1, "cpu, 1 thread"), (8, "cpu, 8 threads")])
def test_a_cpu_is_described_with_its_threads(threads: int, description: str):
    assert describe_device(CPU, threads) == description


def test_a_small_model_leaves_a_core_to_the_data_workers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devices, "cores", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert [pick_threads(CPU, macs) for macs in (10**6, 10**9)] == [3, 4]


def test_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    with use_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cuda", r"torch can use no CUDA device on this machine[\s\S]*--device cpu"),
        ("cuda:3", "torch can use no CUDA device on this machine"),
        ("mps", r"this machine has no Apple GPU[\s\S]*--device cpu"),
        ("gpu", r"device = 'gpu' is not known[\s\S]*auto, cuda, cuda:1, cpu or mps"),
        ("", "device = '' is not known"),
        ("meta", "device = meta is not supported"),
    ],
)
def test_a_missing_device_is_an_error_that_suggests_another(name: str, message: str):
    with pytest.raises(ConfigError, match=message):
        pick_device(name)


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_index_beyond_the_last_is_an_error():
    with pytest.raises(ConfigError, match=r"cuda:2: this machine has 2 CUDA devices, counted from 0"):
        pick_device("cuda:2")


@pytest.mark.parametrize(("capability", "precision"), [((7, 5), "fp32"), ((8, 0), "bf16"), ((9, 0), "bf16")])
def test_bf16_is_the_default_on_gpus_that_multiply_it_natively(
    capability: tuple[int, int], precision: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert pick_precision("auto", CUDA) == precision
    assert pick_precision("fp32", CUDA) == "fp32"
    assert pick_precision("bf16", CUDA) == "bf16"


def test_a_cpu_computes_in_fp32_by_default():
    assert pick_precision("auto", CPU) == "fp32"
    assert pick_precision("bf16", CPU) == "bf16"


@pytest.mark.parametrize(("cores", "processes", "workers"), [(1, 1, 1), (8, 1, 7), (64, 1, 16), (64, 8, 7), (8, 8, 1)])
def test_the_cores_beside_a_gpu_are_shared_by_the_data_workers(
    cores: int, processes: int, workers: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(devices, "cores", lambda: cores)
    assert pick_workers(None, CUDA, processes) == workers
    assert pick_workers(None, CPU, processes) == 1
    assert pick_workers(0, CUDA, processes) == 0


def test_cores_are_those_that_this_process_may_use():
    if hasattr(os, "sched_getaffinity"):
        assert devices.cores() == len(os.sched_getaffinity(0))
