"""Mixed precision against fp32 and autocast, on every kind of model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.func import functional_call
from torch.testing import assert_close

from tests.model.kinds import KINDS, images_for, make
from vitkit.train.mixed_precision import Bf16Copies, MixedPrecision
from vitkit.train.objectives.labels import Labels
from vitkit.train.optimizer import freeze as freeze_blocks


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "no head"])
def test_gradients_are_fp32_and_as_accurate_as_those_of_autocast(kind: str):
    objective = Labels(make(kind), multilabel=False, smoothing=0.0, weights=None)
    pixels = images_for(objective.model, 4) / 4 + 0.5
    targets = torch.eye(objective.model.config.classes)[:4]
    gradients = []
    for module, autocast in ((objective, False), (objective, True), (MixedPrecision(objective), False)):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss, _ = module(pixels, targets)
        loss.backward()
        grads = [parameter.grad for parameter in objective.parameters()]
        assert all(grad is not None and grad.dtype == torch.float32 for grad in grads)
        gradients.append(torch.cat([grad.flatten() for grad in grads]))
        objective.zero_grad()
    exact, theirs, ours = gradients
    assert torch.cosine_similarity(ours, exact, dim=0) > torch.cosine_similarity(theirs, exact, dim=0) - 0.12


def test_all_activations_are_bf16():
    objective = Labels(make("token"), multilabel=False, smoothing=0.0, weights=None)
    dtypes = {}
    for name, module in objective.model.named_modules():
        module.register_forward_hook(lambda _, __, out, name=name: dtypes.update({name: out.dtype}))
    MixedPrecision(objective)(torch.rand(2, 3, 32, 32), torch.eye(objective.model.config.classes)[:2])
    assert set(dtypes.values()) == {torch.bfloat16}


def test_it_compiles_to_one_graph_with_the_same_loss():
    objective = Labels(make("token"), multilabel=False, smoothing=0.0, weights=None)
    pixels, targets = torch.rand(2, 3, 32, 32), torch.eye(objective.model.config.classes)[:2]
    expected = MixedPrecision(objective)(pixels, targets)[0]
    outside, inside = (
        torch.compile(MixedPrecision(objective), fullgraph=True, backend="aot_eager"),
        MixedPrecision(objective),
    )
    inside.compile(fullgraph=True, backend="aot_eager")
    for compiled in (outside, inside):
        assert_close(compiled(pixels, targets)[0], expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize("freeze", [0, 1, -1])
def test_weights_cast_together_have_the_gradients_of_weights_cast_one_by_one(freeze: int):
    """Frozen weights keep nothing for backward."""
    gradients = []
    for together in (False, True):
        torch.manual_seed(0)
        objective = Labels(make("token"), multilabel=False, smoothing=0.0, weights=None)
        frozen = set(freeze_blocks(objective.model, freeze))
        masters = dict(objective.named_parameters())
        copies = (
            MixedPrecision(objective).cast_weights(masters)
            if together
            else {name: one.bfloat16() for name, one in masters.items()}
        )
        assert {name for name, tensor in copies.items() if not tensor.requires_grad} == {f"model.{n}" for n in frozen}
        loss, _ = functional_call(objective, copies, (torch.rand(2, 3, 32, 32), torch.eye(10)[:2]))
        loss.backward()
        gradients.append({name: parameter.grad for name, parameter in objective.named_parameters()})
    for name, one in gradients[0].items():
        other = gradients[1][name]
        assert (one is None) == (other is None) == (name.removeprefix("model.") in frozen)
        if one is not None:
            assert torch.equal(one, other)


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda weights: torch.optim.SGD(weights, lr=0.1, fused=True),
        lambda weights: torch.optim.AdamW(weights, lr=0.1, fused=True),
        lambda weights: torch.optim.Adam(weights, lr=0.1),
    ],
)
def test_persistent_copies_follow_every_change_of_their_weights(
    make_optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
):
    weights = [torch.nn.Parameter(torch.randn(5, 3)), torch.nn.Parameter(torch.randn(7))]
    copies, optimizer = Bf16Copies(), make_optimizer(weights)
    copies.persistent = True
    for change in (optimizer.step, lambda: [weight.detach().mul_(3) for weight in weights], lambda: None):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        change()
        for copy, weight in zip(copies(weights), weights, strict=True):
            assert torch.equal(copy, weight.bfloat16())


def test_persistent_copies_are_refreshed_only_when_a_weight_has_changed():
    """Otherwise every step would read all weights once more."""
    weights = [torch.nn.Parameter(torch.randn(5)) for _ in range(3)]
    copies = Bf16Copies()
    copies.persistent = True
    for copy in copies(weights):
        copy.zero_()
    with torch.no_grad():
        weights[1].add_(1)
    assert [bool(copy.any()) for copy in copies(weights)] == [False, True, False]
    copies.mark_updated([weights[0]])  # a kernel updated weight and copy
    assert [bool(copy.any()) for copy in copies(weights)] == [False, True, False]
    with torch.no_grad():
        weights[2].add_(1)
    copies.mark_updated([weights[2]])  # but the weight had changed before
    assert [bool(copy.any()) for copy in copies(weights)] == [False, True, True]


def test_two_forward_passes_before_one_backward_have_copies_of_their_own():
    objective = Labels(make("token"), multilabel=False, smoothing=0.0, weights=None)
    mixed, masters = MixedPrecision(objective), dict(objective.named_parameters())
    micro_batch = torch.rand(2, 3, 32, 32), torch.eye(objective.model.config.classes)[:2]
    first, second = (mixed.swapped(mixed.cast_weights(masters), *micro_batch)[0] for _ in range(2))
    (first + second).backward()
    twice = torch.cat([parameter.grad.flatten() for parameter in objective.parameters()])
    objective.zero_grad()
    mixed.swapped(mixed.cast_weights(masters), *micro_batch)[0].backward()
    once = torch.cat([parameter.grad.flatten() for parameter in objective.parameters()])
    assert_close(twice, 2 * once, atol=0, rtol=1e-3)


def test_weights_are_restored_after_a_forward_pass_that_fails():
    objective = Labels(make("token"), multilabel=False, smoothing=0.0, weights=None)
    before = dict(objective.named_parameters())
    with pytest.raises(ValueError, match="batch_size"):
        MixedPrecision(objective)(torch.rand(2, 3, 32, 32), torch.eye(objective.model.config.classes)[:3])
    after = dict(objective.named_parameters())
    assert before.keys() == after.keys()
    assert all(after[name] is parameter for name, parameter in before.items())
