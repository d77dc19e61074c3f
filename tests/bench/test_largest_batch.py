"""The largest batch that fits: the search against a known limit, and out-of-memory errors of a pretended device."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitkit.bench import largest_batch as module
from vitkit.bench.largest_batch import EXACTNESS, MOST, estimated_batch, largest_batch, search
from vitkit.bench.measure import Row, needed
from vitkit.bench.work import untrained_model
from vitkit.model.variants import configure

ROW = Row(what="training", precision="fp32", batch=1, compiled=False)


@given(limit=st.integers(0, 2 * MOST), start=st.integers(1, 2 * MOST))
def test_the_search_finds_the_limit_in_few_trials(limit: int, start: int):
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return batch <= limit

    found = search(fits, start)
    limit = min(limit, MOST)
    assert limit - limit // EXACTNESS - 1 <= found <= limit
    assert found == limit or limit > EXACTNESS
    assert len(tried) == len(set(tried)) <= 2 * MOST.bit_length()
    assert max(tried) <= MOST


@given(memory=st.integers(0, 1 << 38))
def test_the_estimate_is_the_largest_that_the_closed_form_allows(memory: int):
    config = configure("Ti/16")
    batch = estimated_batch(config, ROW, memory)
    assert batch == 0 or needed(config, "training", batch, bytes_per_number=4) <= memory
    assert batch == MOST or needed(config, "training", batch + 1, bytes_per_number=4) > memory


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: out of memory"),
    ],
)
def test_out_of_memory_bounds_the_batch_and_other_errors_do_not(error: Exception, monkeypatch: pytest.MonkeyPatch):
    """Real steps on the CPU, with a device that pretends to have room for 11 images."""
    model, gpu = untrained_model("mu/4", image=16), torch.device("cuda")
    steps: list[int] = []
    real = module.prepare_row

    def pretend(model, row, device, *, calls):
        if row.batch > 11:
            raise error
        steps.append(row.batch)
        return real(model, row, torch.device("cpu"), calls=calls)

    monkeypatch.setattr(module, "prepare_row", pretend)
    monkeypatch.setattr(module, "release", lambda device: None)
    monkeypatch.setattr(module, "free_memory", lambda device: 20 << 20)
    found = largest_batch(model, ROW, gpu)
    assert found.largest_batch == 11 == max(steps)
    assert found.tried[11] is True
    assert found.tried[12] is False
    assert found.estimate == estimated_batch(model.config, ROW, 20 << 20)

    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(module, "prepare_row", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        largest_batch(model, ROW, gpu)
