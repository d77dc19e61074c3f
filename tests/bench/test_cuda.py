"""Measuring on a CUDA device."""

from __future__ import annotations

import gc
import time

import pytest
import torch

from vitkit.bench.largest_batch import EXACTNESS, largest_batch
from vitkit.bench.measure import Row, measure, plan
from vitkit.bench.timing import prepare, synchronize, time_calls
from vitkit.bench.work import training_step, untrained_model
from vitkit.cost import cost
from vitkit.train.cuda_graph import WARM_UPS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

GPU = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def test_queued_calls_add_up_to_the_elapsed_time():
    a = torch.randn(4096, 4096, device=GPU)
    torch.mm(a, a)
    synchronize(GPU)
    started = time.perf_counter()
    times = time_calls(lambda: torch.mm(a, a), GPU, 50)
    elapsed = time.perf_counter() - started
    assert sum(times) <= elapsed
    assert sum(times) > 0.5 * elapsed


@pytest.mark.parametrize("before", [1, WARM_UPS + 1])
def test_a_step_of_training_does_not_wait_for_the_device(before: int):
    work = training_step(untrained_model("mu/4", image=32), GPU, "bf16", batch=4, compiled=False)
    for _ in range(before):
        work()
    synchronize(GPU)
    torch.cuda.set_sync_debug_mode("error")
    try:
        work()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_peak_memory_is_that_of_the_work_only():
    other = torch.empty(2**30, dtype=torch.uint8, device=GPU)
    prepared = prepare(
        lambda: torch.empty(2**29, dtype=torch.uint8, device=GPU),
        lambda _: lambda: torch.empty(2**28, dtype=torch.uint8, device=GPU),
        GPU,
        warmups=2,
    )
    assert prepared.peak_bytes is not None
    assert 2**28 <= prepared.peak_bytes < 2**28 + 2**22
    del other


def test_garbage_of_earlier_work_does_not_change_the_peak():
    cycle: list[object] = [torch.empty(2**30, dtype=torch.uint8, device=GPU)]
    cycle.append(cycle)  # garbage that stays on the GPU until it is collected
    del cycle

    def work() -> torch.Tensor:
        gc.collect()
        return torch.empty(2**28, dtype=torch.uint8, device=GPU)

    prepared = prepare(lambda: None, lambda _: work, GPU, warmups=2)
    assert prepared.peak_bytes is not None
    assert 2**28 <= prepared.peak_bytes < 2**28 + 2**22


def test_training_needs_at_least_its_state():
    model = untrained_model("Ti/16", image=224)
    result = measure(model, Row(what="training", precision="bf16", batch=8, compiled=False), GPU)
    assert result.peak_bytes > cost(model.config).state_bytes


def test_every_planned_row_can_be_measured():
    model = untrained_model("mu/4", image=32)
    rows = plan(model, GPU, what=(), precision="auto", batch=8, compiled=False)
    assert {row.what for row in rows} == {"training", "inference", "latency"}
    for row in rows:
        assert measure(model, row, GPU).seconds > 0


@pytest.mark.parametrize("name", ["B/16", "R50x1"])
def test_the_largest_batch_fits_and_one_a_little_larger_does_not(name: str):
    """On a part of the memory, so that the search takes seconds."""
    free, total = torch.cuda.mem_get_info(GPU)
    torch.cuda.set_per_process_memory_fraction(min(8 * 2**30, free) / total, GPU)
    try:
        row = Row(what="training", precision="bf16", batch=1, compiled=False)
        found = largest_batch(untrained_model(name, image=224), row, GPU)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, GPU)
    assert found.largest_batch
    assert found.tried[found.largest_batch]
    above = [batch for batch, fitted in found.tried.items() if not fitted]
    assert found.largest_batch < min(above) <= found.largest_batch * (1 + 1 / EXACTNESS) + 1
