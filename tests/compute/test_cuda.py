"""Inference on a CUDA device against the plain model in float32."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import vitkit
from tests.model.kinds import KINDS, images_for, make
from vitkit.compute.cuda_graph import MAX_GRAPHS, STREAMS
from vitkit.compute.inference import Precision, inference, supported_precisions

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_bf16_logits_are_about_as_close_as_autocasts(kind: str, graph: bool):
    model = make(kind).to(DEVICE)
    images = images_for(model, 5).to(DEVICE)
    compute = inference(model, DEVICE, "bf16", graph=graph)
    with torch.inference_mode():
        exact = model(images)
        with torch.autocast("cuda", torch.bfloat16):
            theirs = model(images).float()
        for _ in range(2):  # captured, then replayed
            assert (compute(images) - exact).norm() < 2 * (theirs - exact).norm() + 0.02 * exact.norm()


@pytest.mark.parametrize(("precision", "share"), [("bf16", 0.03), ("fp8", 0.15)])
def test_a_large_model_stays_close_to_float32(precision: Precision, share: float):
    if precision not in supported_precisions(DEVICE):
        pytest.skip(f"{DEVICE} does not multiply {precision}")
    model = vitkit.create("S/16", classes=100).eval().to(DEVICE)
    torch.nn.init.normal_(model.head.logits.weight, std=0.1)
    images = torch.randn(9, 3, 224, 224, device=DEVICE)
    with torch.inference_mode():
        exact = model(images)
        logits = inference(model, DEVICE, precision)(images)
    assert (logits - exact).norm() < share * exact.norm()


def test_a_captured_graph_serves_callers_of_all_modes_and_threads():
    model = make("token").to(DEVICE)
    compute = inference(model, DEVICE, "bf16", graph=True)
    batches = [images_for(model, 3).to(DEVICE) for _ in range(8)]
    with torch.inference_mode():
        expected = [compute(images) for images in batches]
    results: dict[int, Tensor] = {}

    def ask(number: int) -> None:
        results[number] = compute(batches[number])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, logits in enumerate(expected):
        assert_close(results[number], logits, atol=1e-2, rtol=1e-2)


def test_graphs_stay_valid_when_others_are_freed():
    """More of them than torch has streams: each holds memory of matrix products that belongs to its stream."""
    model = make("token").to(DEVICE)
    sizes = {count: images_for(model, count).to(DEVICE) for count in range(1, MAX_GRAPHS + 1)}
    several = [inference(model, DEVICE, "bf16", graph=True) for _ in range(STREAMS // MAX_GRAPHS + 1)]
    with torch.inference_mode():
        expected = [[compute(images) for images in sizes.values()] for compute in several]
        del several[::2], expected[::2]
        gc.collect()
        torch.cuda.empty_cache()
        elsewhere = [torch.full((2**20,), 7.0, device=DEVICE) for _ in range(64)]
        for compute, before in zip(several, expected, strict=True):
            for images, logits in zip(sizes.values(), before, strict=True):
                assert_close(compute(images), logits, atol=1e-2, rtol=1e-2)
    assert all(bool((held == 7).all()) for held in elsewhere)
