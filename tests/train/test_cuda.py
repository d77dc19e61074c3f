"""Training on a CUDA device, beside the same training on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from tests.train.runs import losses, rewound, toy, trained, weights
from vitkit.config.schema import AdamW, Augmentation, Schedule

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

PLAIN: dict[str, Any] = {
    "steps": 12,
    "save_every": 4,
    "lr": 1e-3,
    "optimizer": AdamW(weight_decay=0.1),
    "schedule": Schedule(warmup=2),
    "augment": Augmentation(mixup=0.2),
}


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 2e-2)])
def test_losses_are_those_of_the_cpu(precision: str, tolerance: float, tmp_path: Path):
    here = trained(toy(tmp_path / "cpu", **PLAIN))
    there = trained(toy(tmp_path / "cuda", device="cuda", precision=precision, **PLAIN))
    assert_close(losses(there), losses(here), atol=tolerance, rtol=0)


def test_a_run_goes_on_from_a_checkpoint_as_it_would_have(tmp_path: Path):
    whole = trained(toy(tmp_path / "whole", device="cuda", average=0.9, **PLAIN))
    again = trained(toy(rewound(whole, tmp_path / "again"), device="cuda", average=0.9, **PLAIN))
    assert_close(losses(again), losses(whole), atol=1e-5, rtol=0)
    for name, tensor in weights(whole).items():
        assert_close(weights(again)[name], tensor, atol=1e-5, rtol=1e-4)


def test_the_batch_is_tried_and_fits(tmp_path: Path):
    run = trained(
        toy(
            tmp_path / "run",
            device="cuda",
            **{**PLAIN, "micro": None, "batch": 512, "steps": 2, "schedule": Schedule()},
        )
    )
    assert "micro = 512" in (run / "config.toml").read_text()
