"""`vitkit bench`: real training steps and forward passes, closed forms, and memory that is estimated beforehand."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import ViTConfig, ViTForImageClassification

from vitkit.bench import ceiling
from vitkit.bench import measure as measuring
from vitkit.bench.measure import BenchError, Row, measure, needed, pick_batch, plan
from vitkit.bench.timing import Result, prepare, time_calls
from vitkit.bench.work import flops, inference_call, training_step, untrained_model
from vitkit.devices import free_memory
from vitkit.model.variants import configure

CPU = torch.device("cpu")
TOY = configure("mu/4", image=32)


def test_each_call_is_timed():
    times = time_calls(lambda: time.sleep(0.02), CPU, 5)
    assert len(times) == 5
    assert all(one >= 0.02 for one in times)


def test_a_median_has_at_least_three_calls():
    assert len(time_calls(lambda: time.sleep(0.02), CPU, 100, seconds=0.01)) == 3


def test_the_first_call_is_timed_separately(monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[-1])
    slept = iter([7.0, 0.1, 5.0, 0.0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.append(clock[-1] + seconds))
    prepared = prepare(lambda: time.sleep(next(slept)), lambda _: lambda: time.sleep(next(slept)), CPU, warmups=3)
    assert next(slept, None) is None
    assert prepared.first_seconds == pytest.approx(0.1)
    assert prepared.peak_bytes is None


def test_rates_follow_from_the_median():
    result = Result(batch=8, flops=10**9, times=(0.5, 0.1, 0.2), first_seconds=3.0, peak_bytes=None, compiled=True)
    record = result.record(ceiling=80e9)
    assert record["images_per_second"] == 40
    assert record["milliseconds"] == 200
    assert record["share_of_ceiling"] == 0.5
    assert record["compile_seconds"] == 2.8


def test_flops_are_those_that_torch_counts_in_transformers():
    theirs = ViTForImageClassification(
        ViTConfig(
            image_size=32,
            patch_size=4,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=128,
            num_labels=1000,
            attn_implementation="eager",
        )
    )
    with FlopCounterMode(display=False) as counted:
        theirs(torch.rand(1, 3, 32, 32))
    assert flops(TOY, "inference") == counted.get_total_flops()
    assert flops(TOY, "training") == 3 * counted.get_total_flops()


def test_the_timed_training_step_lowers_the_loss():
    model = untrained_model("mu/4", image=32)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    work = training_step(model, CPU, "fp32", batch=4, compiled=False)
    losses = [work().loss.item() for _ in range(20)]
    assert losses[-1] < losses[0] - 0.1
    assert not any(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_timed_inference_returns_logits(precision: Any):
    logits = inference_call(untrained_model("mu/4", image=32), CPU, precision, batch=4, compiled=False)()
    assert logits.shape == (4, 1000)
    assert logits.dtype == torch.float32
    assert len(logits.unique(dim=0)) == 4


def test_measuring_does_not_change_the_model():
    model = untrained_model("mu/4", image=32)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = measure(model, Row(what="training", precision="fp32", batch=2, compiled=False), CPU)
    assert result.seconds > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_product_of_side_n_is_2_n_cubed_operations(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        ceiling, "time_calls", lambda work, *arguments, **options: (work().sum().item() * 0 + 2.0, 1.0, 3.0)
    )
    measured = ceiling.measure_ceiling(CPU, "fp32")
    assert measured.flops == measured.side**3
    assert measured.description.endswith("GFLOP/s, fp32 product of 1,536³")


# Defaults


@pytest.mark.parametrize(
    ("precision", "whats"),
    [("auto", {"training", "inference", "latency"}), ("bf16", {"training", "inference", "latency"})],
)
def test_by_default_everything_is_measured(precision: str, whats: set[str]):
    rows = plan(untrained_model("mu/4", image=32), CPU, what=(), precision=precision, batch=None, compiled=False)
    assert {row.what for row in rows} == whats
    assert all(row.batch == 1 for row in rows if row.what == "latency")


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        (
            "mu/4",
            [
                ("training", "bf16", True),
                ("inference", "bf16", False),
                ("inference", "fp8", False),
                ("latency", "bf16", False),
                ("latency", "fp8", False),
            ],
        ),
        ("R50x1", [("training", "bf16", True), ("inference", "bf16", True), ("latency", "bf16", True)]),
    ],
)
def test_a_gpu_is_measured_in_all_its_reduced_precisions(name: str, rows: list[Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measuring, "supported_precisions", lambda device: ("fp32", "bf16", "fp8"))
    monkeypatch.setattr(measuring, "pick_precision", lambda requested, device: "bf16")
    planned = plan(
        untrained_model(name, image=32), torch.device("cuda"), what=(), precision="auto", batch=8, compiled=True
    )
    assert [(row.what, row.precision, row.compiled) for row in planned] == rows
    assert all(row.graph == (row.what == "latency") for row in planned)


@pytest.mark.parametrize(("name", "most"), [("mu/4", 8), ("Ti/16", 8), ("L/16", 4), ("G/14", 1)])
def test_a_step_on_a_cpu_takes_seconds_not_minutes(name: str, most: int):
    config = configure(name)
    batch = pick_batch(config, "training", CPU)
    assert 1 <= batch <= most
    assert batch == 1 or batch * flops(config, "training") <= measuring.CPU_FLOPS


def test_a_small_gpu_gets_a_small_batch(monkeypatch: pytest.MonkeyPatch):
    gpu, config = torch.device("cuda"), configure("B/16")
    batches = {}
    for gib in (140, 24, 8, 1):
        monkeypatch.setattr(measuring, "free_memory", lambda device, gib=gib: gib * 2**30)
        batches[gib] = pick_batch(config, "training", gpu)
    assert batches == {140: 256, 24: 256, 8: 64, 1: 1}


# Out of memory


def test_a_batch_too_large_for_a_cpu_is_an_error_beforehand():
    with pytest.raises(BenchError, match="training with batch 1,000,000 does not fit") as raised:
        plan(
            untrained_model("B/16", image=224),
            CPU,
            what=("training",),
            precision="fp32",
            batch=1_000_000,
            compiled=False,
        )
    proposed = int(str(raised.value).rpartition(" ")[2])
    assert needed(configure("B/16"), "training", proposed, bytes_per_number=4) < free_memory(CPU)


def test_running_out_of_memory_suggests_a_smaller_batch(monkeypatch: pytest.MonkeyPatch):
    def full(*arguments: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(measuring, "prepare", full)
    with pytest.raises(BenchError, match=r"inference with batch 64 does not fit[\s\S]*--batch 32"):
        measure(
            untrained_model("mu/4", image=32), Row(what="inference", precision="fp32", batch=64, compiled=True), CPU
        )


def test_a_compiler_that_fails_suggests_no_compilation(monkeypatch: pytest.MonkeyPatch):
    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify one")

    monkeypatch.setattr(measuring, "prepare", broken)
    row = Row(what="training", precision="fp32", batch=1, compiled=True)
    with pytest.raises(BenchError, match=r"RuntimeError: Failed to find C compiler\.\n[\s\S]*--compile no"):
        measure(untrained_model("mu/4", image=32), row, CPU)
    with pytest.raises(RuntimeError, match="C compiler"):  # nothing was compiled: not a user's mistake
        measure(untrained_model("mu/4", image=32), Row(what="training", precision="fp32", batch=1, compiled=False), CPU)
