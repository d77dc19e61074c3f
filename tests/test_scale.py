"""The simulation of many GPUs (benchmarks/scale.py) has the limits of its closed forms; docs/scale.md is its page."""

from __future__ import annotations

import importlib
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import vitkit

ROOT = Path(vitkit.__file__).parents[1]


@pytest.fixture(scope="module")
def scale() -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module("scale")
    finally:
        sys.path.pop(0)


@pytest.fixture
def ideal(scale: ModuleType):
    """Machines that lose no time: no stragglers, an infinite network and loader."""
    fast = {"nvlink": math.inf, "network": math.inf, "storage": 1e15, "decode_rate": 1e12}
    return scale.Cluster(**fast, nvlink_latency=0.0, network_latency=0.0, jitter=0.0)


def test_one_gpu_computes_and_nothing_else(scale: ModuleType, ideal):
    job = scale.Job(parameters=1e8, blocks=12, compute=0.1, per_gpu=64, gpus=1, cluster=ideal)
    line = scale.simulate(job, 50, checkpoints=False)
    assert line.seconds == pytest.approx(50 * 0.1)
    assert (line.communication, line.data, line.stragglers) == (0, 0, 0)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("gpus", [2, 8, 64, 512])
def test_an_infinite_network_scales_perfectly(gpus: int, sharded: bool, scale: ModuleType, ideal):
    job = scale.Job(parameters=1e9, blocks=24, compute=0.1, per_gpu=8, gpus=gpus, cluster=ideal, sharded=sharded)
    assert scale.simulate(job, 20, checkpoints=False).images_per_second(job) == pytest.approx(gpus * 8 / 0.1)


def test_without_compute_a_step_is_the_time_of_its_bytes(scale: ModuleType, ideal):
    """A ring sends 2 (n - 1) / n of the bytes within a node, and of an eighth of them between nodes."""
    cluster = replace(ideal, nvlink=300e9, network=25e9)
    for gpus, nodes in ((8, 1), (64, 8)):
        job = scale.Job(parameters=1e9, blocks=24, compute=0.0, per_gpu=8, gpus=gpus, cluster=cluster)
        expected = 2 * 7 / 8 * 4e9 / 300e9 + 2 * (nodes - 1) / nodes * 4e9 / 8 / 25e9
        assert scale.exposed_communication(job, 0.0) == pytest.approx(expected)
        inside, between = scale.sent_bytes(job)
        assert inside / 300e9 + between / 25e9 == pytest.approx(expected)
        # FSDP: two gathers in bf16 and a scatter in fp32 are as many bytes, but that the last block stays gathered
        sharded = replace(job, sharded=True)
        assert scale.exposed_communication(sharded, 0.0) == pytest.approx(expected * (1 - 2 / 8 / 24))


def test_with_much_compute_only_the_last_bucket_is_waited_for(scale: ModuleType, ideal):
    cluster = replace(ideal, nvlink=300e9)
    job = scale.Job(parameters=1e9, blocks=24, compute=10.0, per_gpu=8, gpus=8, cluster=cluster)
    buckets = math.ceil(4e9 / cluster.bucket)
    assert scale.exposed_communication(job, 10.0) == pytest.approx(2 * 7 / 8 * 4e9 / buckets / 300e9)


def test_a_slow_loader_sets_the_rate(scale: ModuleType, ideal):
    for slow in (replace(ideal, storage=1e8), replace(ideal, cores=2, decode_rate=455.0)):
        job = scale.Job(parameters=1e8, blocks=12, compute=0.01, per_gpu=64, gpus=16, cluster=slow)
        line = scale.simulate(job, 200, checkpoints=False)
        assert line.images_per_second(job) == pytest.approx(2 * min(scale.loader_rate(slow)))


def test_all_wait_for_the_slowest_of_many(scale: ModuleType, ideal):
    """The expected largest of n normal numbers: 1.423600 for 8 (tables of order statistics), about 3.04 for 512."""
    for gpus, largest in ((8, 1.4236), (512, 3.037)):
        cluster = replace(ideal, jitter=0.02)
        job = scale.Job(parameters=1e8, blocks=12, compute=1.0, per_gpu=64, gpus=gpus, cluster=cluster)
        line = scale.simulate(job, 2000, checkpoints=False)
        assert line.stragglers / 2000 == pytest.approx(0.02 * largest, abs=5 * 0.02 * 0.61 / math.sqrt(2000))


def test_checkpoints_cost_their_copy_and_what_the_next_one_waits(scale: ModuleType, ideal):
    cluster = replace(ideal, host_copy=1e9, write=1e9, save_every=100.0)
    job = scale.Job(parameters=1e9, blocks=24, compute=0.1, per_gpu=8, gpus=8, cluster=cluster)  # 12 GB
    assert scale.checkpoint_share(job) == pytest.approx(12 / 100)
    assert scale.checkpoint_share(replace(job, sharded=True)) == pytest.approx(12 / 8 / 100)
    late = replace(job, cluster=replace(cluster, write=0.1e9))  # 120 seconds
    assert scale.checkpoint_share(late) == pytest.approx((12 + 20) / 100)


def test_the_time_at_the_measured_batch_is_the_measured_one(scale: ModuleType):
    for model, measured in scale.MEASURED.items():
        one = scale.job(model, 1, batch=measured.batch)
        assert one.compute == pytest.approx(measured.batch / measured.images_per_second)


def test_the_page_is_what_the_simulation_says(scale: ModuleType, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    page = importlib.import_module("scale_page").page()
    assert (ROOT / "docs" / "scale.md").read_text(encoding="utf-8") == page
