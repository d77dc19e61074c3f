"""A step beside one written out in torch alone; what it holds, and whom it waits for."""

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
from vitkit.train.distributed import Processes, share
from vitkit.train.objectives.labels import Labels
from vitkit.train.optimizer import build_optimizer
from vitkit.train.step import Part, Step

CONFIG = Fit(optimizer=AdamW(weight_decay=0.1), lr=1e-2)
CPU = torch.device("cpu")


def objective(device: torch.device = CPU) -> Labels:
    torch.manual_seed(3)
    model = vitkit.create("mu/4", image=16, classes=5)
    torch.nn.init.normal_(model.head.logits.weight)
    return Labels(model, multilabel=False, smoothing=0.0, weights=None).to(device)


def made(trained: Labels, *, clip: float, parts: int, device: torch.device = CPU, precision: str = "fp32") -> Step:
    shared = share(trained, "none", Processes(device), "bf16" if precision == "bf16" else "fp32")
    return Step(shared, build_optimizer(trained, CONFIG, fused=False), clip=clip, parts=parts)


def random_part(device: torch.device = CPU) -> Part:
    return torch.rand(4, 3, 16, 16, device=device), torch.eye(5, device=device)[[0, 1, 2, 3]]


@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_weights_losses_and_norms_are_those_of_torch_alone(clip: float):
    ours, theirs = objective(), objective().model
    batch = [random_part(), random_part()]
    step = made(ours, clip=clip, parts=2)
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
        found = step(iter(batch))
        losses = [F.cross_entropy(theirs((pixels - 0.5) / 0.5), targets) for pixels, targets in batch]
        (losses[0] / 2).backward()
        (losses[1] / 2).backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in theirs.parameters()])
        if clip:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        assert found.loss.item() == torch.stack(losses).mean().item()
        assert found.norm.item() == pytest.approx(gradient.norm().item(), rel=1e-5)
        assert found.norm > 0.3  # so that clipping has something to do
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in ours.parameters())


class Parts(Iterator[Part]):
    """Hands parts over and keeps none; remembers which of those before were still alive when one was asked for."""

    def __init__(self) -> None:
        self.given: list[weakref.ref[Tensor]] = []
        self.alive: list[int] = []

    def __next__(self) -> Part:
        self.alive.append(sum(one() is not None for one in self.given))
        pixels, targets = random_part()
        self.given.append(weakref.ref(pixels))
        return pixels, targets


def test_a_part_is_let_go_before_the_next_is_asked_for():
    parts = Parts()
    made(objective(), clip=1.0, parts=3)(parts)
    assert parts.alive == [0, 0, 0]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_nothing_is_read_from_the_device(precision: str):
    """A meta tensor has no values: whoever asks for one fails."""
    meta = torch.device("meta")
    step = made(objective(meta), clip=1.0, parts=2, device=meta, precision=precision)
    found = step(itertools.repeat(random_part(meta)))
    assert found.loss.is_meta
    assert found.norm.is_meta


def test_a_fused_optimizer_meets_the_gradient_as_clipping_leaves_it():
    ours, theirs = objective(), objective()
    batch = random_part()
    config = Fit(lr=1e-2)  # SGD: Adam would make much of the rounding in a key's bias, whose gradient is 0
    step = Step(ours, build_optimizer(ours, config, fused=True), clip=0.3)
    optimizer = build_optimizer(theirs, config, fused=True)
    assert step.divides
    for _ in range(3):
        found = step(iter([batch]))
        theirs(*batch)[0].backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.3)
        optimizer.step()
        optimizer.zero_grad()
        assert found.norm.item() == pytest.approx(norm.item(), rel=1e-5)
        assert found.norm > 0.3
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
