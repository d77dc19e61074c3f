"""A training step against plain torch; what it keeps in memory, and that it never waits for the device."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import vitkit
from vitkit.config.schema import AdamW, Fit
from vitkit.train.distributed import Processes, parallelize
from vitkit.train.objectives.labels import Labels
from vitkit.train.optimizer import build_optimizer
from vitkit.train.step import MicroBatch, Step

CONFIG = Fit(optimizer=AdamW(weight_decay=0.1), lr=1e-2)
CPU = torch.device("cpu")


def objective(device: torch.device = CPU) -> Labels:
    torch.manual_seed(3)
    model = vitkit.create("mu/4", image=16, classes=5)
    torch.nn.init.normal_(model.head.logits.weight)
    return Labels(model, multilabel=False, smoothing=0.0, weights=None).to(device)


def make_step(
    trained: Labels, *, clip: float, accumulate: int, device: torch.device = CPU, precision: str = "fp32"
) -> Step:
    wrapped = parallelize(trained, "none", Processes(device), "bf16" if precision == "bf16" else "fp32")
    return Step(wrapped, build_optimizer(trained, CONFIG, fused=False), clip=clip, accumulate=accumulate)


def random_micro_batch(device: torch.device = CPU) -> MicroBatch:
    return torch.rand(4, 3, 16, 16, device=device), torch.eye(5, device=device)[[0, 1, 2, 3]]


@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_weights_losses_and_norms_are_those_of_plain_torch(clip: float):
    ours, theirs = objective(), objective().model
    batch = [random_micro_batch(), random_micro_batch()]
    step = make_step(ours, clip=clip, accumulate=2)
    decayed = [
        parameter for name, parameter in theirs.named_parameters() if name.endswith("weight") and parameter.ndim > 1
    ]
    others = [
        parameter
        for name, parameter in theirs.named_parameters()
        if not (name.endswith("weight") and parameter.ndim > 1)
    ]
    optimizer = torch.optim.AdamW(
        [{"params": others, "weight_decay": 0.0}, {"params": decayed, "weight_decay": 0.1}], lr=1e-2
    )
    for _ in range(3):
        result = step(iter(batch))
        losses = [F.cross_entropy(theirs((pixels - 0.5) / 0.5), targets) for pixels, targets in batch]
        (losses[0] / 2).backward()
        (losses[1] / 2).backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in theirs.parameters()])
        if clip:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        assert result.loss.item() == torch.stack(losses).mean().item()
        assert result.norm.item() == pytest.approx(gradient.norm().item(), rel=1e-5)
        assert result.norm > 0.3  # so that clipping does something
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in ours.parameters())


class MicroBatches(Iterator[MicroBatch]):
    """Yields micro-batches, keeps none, and counts how many of the earlier ones are alive at each request."""

    def __init__(self) -> None:
        self.yielded: list[weakref.ref[Tensor]] = []
        self.alive: list[int] = []

    def __next__(self) -> MicroBatch:
        self.alive.append(sum(one() is not None for one in self.yielded))
        pixels, targets = random_micro_batch()
        self.yielded.append(weakref.ref(pixels))
        return pixels, targets


def test_a_micro_batch_is_released_before_the_next_is_requested():
    micro_batches = MicroBatches()
    make_step(objective(), clip=1.0, accumulate=3)(micro_batches)
    assert micro_batches.alive == [0, 0, 0]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_reads_nothing_from_the_device(precision: str):
    """A meta tensor has no values: reading one fails."""
    meta = torch.device("meta")
    step = make_step(objective(meta), clip=1.0, accumulate=2, device=meta, precision=precision)
    result = step(itertools.repeat(random_micro_batch(meta)))
    assert result.loss.is_meta
    assert result.norm.is_meta


def test_a_fused_optimizer_clips_as_torch_does():
    ours, theirs = objective(), objective()
    batch = random_micro_batch()
    config = Fit(lr=1e-2)  # SGD: Adam would amplify rounding errors in the key bias, whose gradient is 0
    step = Step(ours, build_optimizer(ours, config, fused=True), clip=0.3)
    optimizer = build_optimizer(theirs, config, fused=True)
    assert step.optimizer_clips
    for _ in range(3):
        result = step(iter([batch]))
        theirs(*batch)[0].backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.3)
        optimizer.step()
        optimizer.zero_grad()
        assert result.norm.item() == pytest.approx(norm.item(), rel=1e-5)
        assert result.norm > 0.3
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
