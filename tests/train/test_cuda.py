"""Training on a CUDA device against the same training on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from tests.train.runs import losses, rewind, toy, train_run, weights
from vitkit.cli.main import main
from vitkit.compute.inputs_ahead import InputsAhead
from vitkit.compute.kept_inputs import KeptInputs
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
    on_cpu = train_run(toy(tmp_path / "cpu", **PLAIN))
    on_gpu = train_run(toy(tmp_path / "cuda", device="cuda", precision=precision, **PLAIN))
    assert_close(losses(on_gpu), losses(on_cpu), atol=tolerance, rtol=0)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path):
    uninterrupted = train_run(toy(tmp_path / "uninterrupted", device="cuda", average=0.9, **PLAIN))
    resumed = train_run(toy(rewind(uninterrupted, tmp_path / "resumed"), device="cuda", average=0.9, **PLAIN))
    assert_close(losses(resumed), losses(uninterrupted), atol=1e-5, rtol=0)
    for name, tensor in weights(uninterrupted).items():
        assert_close(weights(resumed)[name], tensor, atol=1e-5, rtol=1e-4)


def test_the_largest_micro_batch_that_fits_is_chosen(tmp_path: Path):
    run = train_run(
        toy(
            tmp_path / "run",
            device="cuda",
            **{**PLAIN, "micro": None, "batch": 512, "steps": 2, "schedule": Schedule()},
        )
    )
    assert "micro = 512" in (run / "config.toml").read_text()


def test_the_final_score_takes_images_that_were_loaded_while_steps_were_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    were_ahead: list[bool] = []
    take = KeptInputs.take_ahead

    def counting(self: KeptInputs, *arguments: Any) -> InputsAhead | None:
        ahead = take(self, *arguments)
        were_ahead.append(ahead is not None)
        return ahead

    monkeypatch.setattr(KeptInputs, "take_ahead", counting)
    run = tmp_path / "run"
    small = "--model mu/4 --weights none --image 28 --steps 400 --batch 64 --set duplicates=ignore channels=1".split()
    main(["fit", "fashion", "--device", "cuda", "--out", str(run), *small])
    assert were_ahead[-1]
    scored = json.loads((run / "evaluation.json").read_text())
    main(["evaluate", str(run), "fashion", "--device", "cuda", "--out", str(tmp_path / "again.json")])
    assert json.loads((tmp_path / "again.json").read_text())["top1"] == scored["top1"]
