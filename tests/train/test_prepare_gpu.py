"""What is started for a GPU beforehand: in threads, once, and never a reason to fail."""

from __future__ import annotations

import threading

import pytest
import torch

from vitkit.train import prepare_gpu as module
from vitkit.train.prepare_gpu import prepare_gpu, wait_for_hash


@pytest.fixture(autouse=True)
def in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_hashed", None)


def test_kernels_wait_for_the_hash_which_is_computed_once(monkeypatch: pytest.MonkeyPatch):
    hashed, go_on = [], threading.Event()

    def slow() -> None:
        assert go_on.wait(60)
        hashed.append(threading.current_thread().name)

    def without_gpu(device: torch.device) -> None:
        raise RuntimeError("no CUDA device")

    monkeypatch.setattr(module, "hash_compiler", slow)
    monkeypatch.setattr(module, "_first_operations", without_gpu)  # an error of a step, not of its preparation
    for _ in range(2):
        prepare_gpu(torch.device("cuda"))
    threading.Timer(0.2, go_on.set).start()
    wait_for_hash()
    assert hashed == ["vitkit-gpu"]


def test_nothing_is_started_without_a_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "hash_compiler", lambda: pytest.fail("hashed"))
    prepare_gpu(torch.device("cpu"))
    wait_for_hash()
    assert module._hashed is None


def test_the_first_operations_are_those_of_any_device():
    module._first_operations(torch.device("cpu"))
