"""Training in bf16 beside float32, on every kind of model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.func import functional_call
from torch.testing import assert_close

from tests.model.kinds import KINDS, images_for, make
from vitkit.train.mixed_precision import Copies, Narrow
from vitkit.train.objectives.labels import Labels
from vitkit.train.optimizer import freeze as freeze_blocks


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "no head"])
def test_gradients_arrive_in_float32_and_point_where_autocasts_do(kind: str):
    objective = Labels(make(kind), multilabel=False, smoothing=0.0, weights=None)
    pixels = images_for(objective.model, 4) / 4 + 0.5
    targets = torch.eye(objective.model.config.classes)[:4]
    gradients = []
    for computed, autocast in ((objective, False), (objective, True), (Narrow(objective), False)):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss, _ = computed(pixels, targets)
        loss.backward()
        found = {name: parameter.grad for name, parameter in objective.named_parameters()}
        assert all(gradient is not None and gradient.dtype == torch.float32 for gradient in found.values())
        gradients.append(torch.cat([gradient.flatten() for gradient in found.values()]))
        objective.zero_grad()
    exact, theirs, ours = gradients
    assert torch.cosine_similarity(ours, exact, dim=0) > torch.cosine_similarity(theirs, exact, dim=0) - 0.12


def test_nothing_between_the_weights_and_the_loss_is_wider_than_bf16():
    objective = Labels(make("token"), multilabel=False, smoothing=0.0, weights=None)
    widths = {}
    for name, part in objective.model.named_modules():
        part.register_forward_hook(lambda _, __, out, name=name: widths.update({name: out.dtype}))
    Narrow(objective)(torch.rand(2, 3, 32, 32), torch.eye(objective.model.config.classes)[:2])
    assert set(widths.values()) == {torch.bfloat16}


def test_compiled_it_is_one_graph_with_the_same_loss():
    objective = Labels(make("token"), multilabel=False, smoothing=0.0, weights=None)
    pixels, targets = torch.rand(2, 3, 32, 32), torch.eye(objective.model.config.classes)[:2]
    expected = Narrow(objective)(pixels, targets)[0]
    whole, inside = torch.compile(Narrow(objective), fullgraph=True, backend="aot_eager"), Narrow(objective)
    inside.compile(fullgraph=True, backend="aot_eager")
    for compiled in (whole, inside):
        assert_close(compiled(pixels, targets)[0], expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize("freeze", [0, 1, -1])
def test_weights_rounded_at_once_learn_as_those_rounded_one_by_one(freeze: int):
    """Frozen ones keep nothing for a way back that they do not have."""
    found = []
    for at_once in (False, True):
        torch.manual_seed(0)
        objective = Labels(make("token"), multilabel=False, smoothing=0.0, weights=None)
        frozen = set(freeze_blocks(objective.model, freeze))
        wide = dict(objective.named_parameters())
        numbers = Narrow(objective).rounded(wide) if at_once else {name: one.bfloat16() for name, one in wide.items()}
        assert {name for name, tensor in numbers.items() if not tensor.requires_grad} == {f"model.{n}" for n in frozen}
        loss, _ = functional_call(objective, numbers, (torch.rand(2, 3, 32, 32), torch.eye(10)[:2]))
        loss.backward()
        found.append({name: parameter.grad for name, parameter in objective.named_parameters()})
    for name, one in found[0].items():
        other = found[1][name]
        assert (one is None) == (other is None) == (name.removeprefix("model.") in frozen)
        if one is not None:
            assert torch.equal(one, other)


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda given: torch.optim.SGD(given, lr=0.1, fused=True),
        lambda given: torch.optim.AdamW(given, lr=0.1, fused=True),
        lambda given: torch.optim.Adam(given, lr=0.1),
    ],
)
def test_copies_notice_whoever_changes_what_they_are_of(
    make_optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
):
    weights = [torch.nn.Parameter(torch.randn(5, 3)), torch.nn.Parameter(torch.randn(7))]
    copies, optimizer = Copies(), make_optimizer(weights)
    copies.kept = True
    for changed in (optimizer.step, lambda: [weight.detach().mul_(3) for weight in weights], lambda: None):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        changed()
        for copy, weight in zip(copies(weights), weights, strict=True):
            assert torch.equal(copy, weight.bfloat16())


def test_kept_copies_are_made_again_only_when_a_weight_has_changed():
    """Otherwise a pass over all weights is what the optimizer has just saved."""
    weights = [torch.nn.Parameter(torch.randn(5)) for _ in range(3)]
    copies = Copies()
    copies.kept = True
    for copy in copies(weights):
        copy.zero_()
    with torch.no_grad():
        weights[1].add_(1)
    assert [bool(copy.any()) for copy in copies(weights)] == [False, True, False]
    copies.moved([weights[0]])  # by somebody who moved both
    assert [bool(copy.any()) for copy in copies(weights)] == [False, True, False]
    with torch.no_grad():
        weights[2].add_(1)
    copies.moved([weights[2]])  # but it was another weight by then
    assert [bool(copy.any()) for copy in copies(weights)] == [False, True, True]


def test_two_passes_before_one_way_back_have_copies_of_their_own():
    objective = Labels(make("token"), multilabel=False, smoothing=0.0, weights=None)
    narrow, wide = Narrow(objective), dict(objective.named_parameters())
    part = torch.rand(2, 3, 32, 32), torch.eye(objective.model.config.classes)[:2]
    first, second = (narrow.inside(narrow.rounded(wide), *part)[0] for _ in range(2))
    (first + second).backward()
    twice = torch.cat([parameter.grad.flatten() for parameter in objective.parameters()])
    objective.zero_grad()
    narrow.inside(narrow.rounded(wide), *part)[0].backward()
    once = torch.cat([parameter.grad.flatten() for parameter in objective.parameters()])
    assert_close(twice, 2 * once, atol=0, rtol=1e-3)


def test_weights_are_where_they_were_after_a_pass_that_fails():
    objective = Labels(make("token"), multilabel=False, smoothing=0.0, weights=None)
    before = dict(objective.named_parameters())
    with pytest.raises(ValueError, match="batch_size"):
        Narrow(objective)(torch.rand(2, 3, 32, 32), torch.eye(objective.model.config.classes)[:3])
    after = dict(objective.named_parameters())
    assert before.keys() == after.keys()
    assert all(after[name] is parameter for name, parameter in before.items())
