"""Losses of labels: against torch's and plain loops, in micro-batches, weighted, mixed, in bf16."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor, nn

from tests.model.kinds import make
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.sparse_labels import SparseLabels
from vitkit.data.transforms import EvalTransform
from vitkit.model.heads import Head
from vitkit.train.mixed_precision import MixedPrecision
from vitkit.train.objectives.base import Objective
from vitkit.train.objectives.labels import Labels, class_weights, restore_priors, sigmoid_loss, softmax_loss

K = 10
shares = st.floats(0, 0.9)
seeds = st.integers(0, 10**6)


def batch(seed: int, count: int = 6, classes: int = K) -> tuple[Tensor, Tensor]:
    """Return logits and class indices."""
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(count, classes, generator=generator), torch.randint(classes, (count,), generator=generator))


def one_hot(indices: Tensor) -> Tensor:
    return F.one_hot(indices, K).float()


def positive(seed: int) -> Tensor:
    return torch.rand(K, generator=torch.Generator().manual_seed(seed)) + 0.1


# Softmax


@given(seed=seeds, smoothing=shares)
def test_one_hot_targets_give_torchs_cross_entropy_of_indices(seed: int, smoothing: float):
    logits, indices = batch(seed)
    theirs = F.cross_entropy(logits, indices, label_smoothing=smoothing)
    torch.testing.assert_close(softmax_loss(logits, one_hot(indices), smoothing, None), theirs)


@given(seed=seeds, kept=st.floats(0, 1), smoothing=shares)
def test_the_loss_of_mixed_targets_is_the_mixture_of_the_losses(seed: int, kept: float, smoothing: float):
    logits, indices = batch(seed)
    other = indices.roll(1)
    mixed = softmax_loss(logits, kept * one_hot(indices) + (1 - kept) * one_hot(other), smoothing, None)
    losses = (F.cross_entropy(logits, truth, label_smoothing=smoothing) for truth in (indices, other))
    torch.testing.assert_close(mixed, kept * next(losses) + (1 - kept) * next(losses))


@given(seed=seeds, smoothing=shares)
def test_weighted_softmax_is_a_plain_loop(seed: int, smoothing: float):
    logits, indices = batch(seed)
    weights, total = positive(seed), 0.0
    for row, truth in zip(logits.tolist(), indices.tolist(), strict=True):
        for k, weight in enumerate(weights.tolist()):
            share = (1 - smoothing) * (k == truth) + smoothing / K
            total -= weight * share * math.log(math.exp(row[k]) / sum(map(math.exp, row)))
    ours = softmax_loss(logits, one_hot(indices), smoothing, weights)
    assert ours.item() == pytest.approx(total / len(logits), rel=1e-5)


# Sigmoid


@given(seed=seeds)
def test_multi_label_is_torchs_binary_cross_entropy_summed_over_classes(seed: int):
    logits, _ = batch(seed)
    targets = (torch.rand(logits.shape) < 0.3).float()
    theirs = nn.BCEWithLogitsLoss()(logits, targets) * K
    torch.testing.assert_close(sigmoid_loss(logits, targets, 0.0, None), theirs)


@given(seed=seeds, smoothing=shares)
def test_weighted_sigmoid_is_a_plain_loop(seed: int, smoothing: float):
    logits, _ = batch(seed)
    targets = torch.rand(logits.shape, generator=torch.Generator().manual_seed(seed))  # mixed: any share
    weights, total = positive(seed), 0.0
    for row, truths in zip(logits.tolist(), targets.tolist(), strict=True):
        for logit, truth, weight in zip(row, truths, weights.tolist(), strict=True):
            share, yes = (1 - smoothing) * truth + smoothing / 2, 1 / (1 + math.exp(-logit))
            total -= weight * share * math.log(yes) + (1 - share) * math.log(1 - yes)
    ours = sigmoid_loss(logits, targets, smoothing, weights)
    assert ours.item() == pytest.approx(total / len(logits), rel=1e-5)


# The module


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_two_micro_batches_average_to_the_full_batch(multilabel: bool, weighted: bool):
    weights = class_weights(np.array([0] * 9 + [1] * 3 + [2]), K, 1.0) if weighted else None
    objective = Labels(make("token"), multilabel=multilabel, smoothing=0.1, weights=weights)
    pixels, targets = torch.rand(8, 3, 32, 32), one_hot(torch.tensor([0, 0, 0, 0, 1, 1, 2, 3]))
    full, metrics = objective(pixels, targets)
    halves = [objective(pixels[half], targets[half]) for half in (slice(0, 4), slice(4, 8))]
    torch.testing.assert_close(full, (halves[0][0] + halves[1][0]) / 2)
    for name, value in metrics.items():
        torch.testing.assert_close(value, (halves[0][1][name] + halves[1][1][name]) / 2)


@pytest.mark.parametrize("multilabel", [False, True])
def test_the_loss_is_that_of_the_logits_for_normalised_images(multilabel: bool):
    model = make("token")
    model.metadata = replace(model.metadata, preprocessing=Preprocessing(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)))
    objective = Labels(model, multilabel=multilabel, smoothing=0.0, weights=None)
    pixels, targets = torch.rand(2, 3, 32, 32), one_hot(torch.tensor([1, 3]))
    transform = EvalTransform(image=(32, 32), preprocessing=model.metadata.preprocessing)
    logits = model(transform.normalise(pixels * 255))
    loss = sigmoid_loss if multilabel else softmax_loss
    torch.testing.assert_close(objective(pixels, targets)[0], loss(logits, targets, 0.0, None))


@pytest.mark.parametrize("kind", ["non-square, one channel", "five channels"])
def test_channels_without_a_mean_of_their_own_get_the_average(kind: str):
    model = make(kind)
    model.metadata = replace(model.metadata, preprocessing=Preprocessing(mean=(0.1, 0.2, 0.3), std=(0.5, 0.4, 0.3)))
    pixels = torch.rand(2, model.config.channels, *model.config.image)
    torch.testing.assert_close(Objective(model, class_token_only=True).normalise(pixels), (pixels - 0.2) / 0.4)


def test_mean_and_std_are_not_part_of_a_checkpoint():
    objective = Labels(make("token"), multilabel=False, smoothing=0.0, weights=torch.ones(K))
    assert all(name.startswith("model.") for name in objective.state_dict())


class FixedLogits(nn.Module):
    """A model that returns fixed logits."""

    dtype = torch.float32

    def __init__(self, logits: Tensor):
        super().__init__()
        self.logits = logits

    def forward(self, images: Tensor) -> Tensor:
        return self.logits


def metrics_of(logits: list[list[float]], targets: list[list[float]], multilabel: bool) -> dict[str, float]:
    objective = Labels(make("token"), multilabel=multilabel, smoothing=0.0, weights=None)
    objective.model = FixedLogits(torch.tensor(logits))
    _, metrics = objective(torch.rand(len(logits), 3, 1, 1), torch.tensor(targets))
    assert not any(value.requires_grad or value.ndim for value in metrics.values())
    return {name: value.item() for name, value in metrics.items()}


def test_accuracy_compares_the_top_class_with_the_largest_target():
    logits = [[3.0, 1, 2], [0, 1, 2], [0, 5, 2], [1, 0, 0]]
    targets = [[1.0, 0, 0], [0, 0.6, 0.4], [0.3, 0.7, 0], [0, 0, 1]]
    assert metrics_of(logits, targets, multilabel=False) == {"accuracy": 0.5}


def test_multi_label_precision_counts_top_classes_that_the_image_has():
    logits = [[3.0, 1, 2], [0, 1, 2], [0, 5, 2], [1, 0, 0]]
    targets = [[1.0, 0, 1], [1, 1, 0], [0, 0.7, 1], [0, 0, 0]]
    assert metrics_of(logits, targets, multilabel=True) == {"top1_precision": pytest.approx(1.7 / 4)}


@pytest.mark.parametrize("multilabel", [False, True])
def test_the_loss_of_a_bf16_model_is_fp32(multilabel: bool):
    objective = Labels(make("token"), multilabel=multilabel, smoothing=0.1, weights=None)
    pixels, targets = torch.rand(4, 3, 32, 32), one_hot(torch.tensor([0, 1, 2, 3]))
    outputs: list[torch.Tensor] = []
    objective.model.register_forward_hook(lambda model, inputs, output: outputs.append(output))
    loss, _ = MixedPrecision(objective)(pixels, targets)
    (logits,) = outputs
    assert logits.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    exact = (sigmoid_loss if multilabel else softmax_loss)(logits.double(), targets.double(), 0.1, None)
    assert loss.item() == pytest.approx(exact.item(), rel=1e-6)


def test_compiles_as_one_graph():
    objective = Labels(make("token"), multilabel=False, smoothing=0.1, weights=torch.rand(K))
    pixels, targets = torch.rand(2, 3, 32, 32), one_hot(torch.tensor([1, 3]))
    compiled = torch.compile(objective, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(pixels, targets), objective(pixels, targets))


# Class weights


@given(counts=st.lists(st.integers(1, 50), min_size=2, max_size=6))
def test_full_balance_is_scikit_learns(counts: list[int]):
    labels = np.repeat(np.arange(len(counts)), counts)
    theirs = compute_class_weight("balanced", classes=np.arange(len(counts)), y=labels)
    np.testing.assert_allclose(class_weights(labels, len(counts), 1.0), theirs, rtol=1e-5)


@given(counts=st.lists(st.integers(0, 50), min_size=2, max_size=6).filter(any), balance=st.floats(0.01, 2))
def test_weights_follow_rarity_and_average_to_one_over_the_images(counts: list[int], balance: float):
    labels = np.append(np.repeat(np.arange(len(counts)), counts), [-1, -1])
    weights = class_weights(labels, len(counts), balance).double().numpy()
    assert weights[labels[labels >= 0]].mean() == pytest.approx(1, rel=1e-5)
    present = [k for k, count in enumerate(counts) if count]
    for k in present:
        ratio = (counts[present[0]] / counts[k]) ** balance
        assert weights[k] / weights[present[0]] == pytest.approx(ratio, rel=1e-4)
    assert all(weights[k] == 1 for k in range(len(counts)) if k not in present)


def test_multi_label_weights_count_the_positives():
    labels = SparseLabels.from_dense([[1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0]])
    np.testing.assert_allclose(class_weights(labels, 3, 1.0), [6 / 8, 6 / 4, 1])  # 4, 2 and 0 of 6 positives


def test_without_balance_there_are_no_weights():
    assert class_weights(np.array([0, 0, 1]), 2, 0.0) is None


def test_unlabelled_images_only_give_equal_weights():
    assert class_weights(np.array([-1, -1]), 3, 1.0).tolist() == [1, 1, 1]


# Priors: two Gaussians of variance 1 at -1 and 1 have the posterior sigmoid(2 x + log(share of the right one / other))

COUNTS = (1900, 100)


def gaussians() -> tuple[Tensor, Tensor]:
    """Return points (n, 1) at the quantiles of the two, as if drawn without noise, and their classes (n,)."""
    points = [
        norm.ppf((np.arange(count) + 0.5) / count, loc=centre) for count, centre in zip(COUNTS, (-1, 1), strict=True)
    ]
    return torch.tensor(np.concatenate(points))[:, None].float(), torch.arange(2).repeat_interleave(
        torch.tensor(COUNTS)
    )


def fitted_head(loss, balance: float, *, classes: int) -> tuple[Head, Tensor]:
    """Minimise the loss over a linear head on the points; one class is the right Gaussian against the rest."""
    points, labels = gaussians()
    targets = F.one_hot(labels, 2).float()[:, -classes:]
    weights = class_weights(
        SparseLabels.from_dense(targets.numpy()) if classes == 1 else labels.numpy(), classes, balance
    )
    if classes == 1:
        weights = torch.tensor([COUNTS[0] / COUNTS[1]]) ** balance  # a single label has no others to balance with
    head = Head(width=1, classes=classes)
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(head(points), targets, 0.0, weights)
        value.backward()
        return value

    optimizer.step(closure)
    assert weights is not None
    return head, weights


@pytest.mark.parametrize(("loss", "classes"), [(softmax_loss, 2), (sigmoid_loss, 1)])
@pytest.mark.parametrize("balance", [0.5, 1.0])
def test_restored_priors_give_the_posterior_of_the_datas_own_shares(loss, classes: int, balance: float):
    head, weights = fitted_head(loss, balance, classes=classes)
    x = torch.linspace(-2.5, 2.5, 21)[:, None]

    def posterior(offset: float) -> Tensor:
        return torch.sigmoid(2 * x[:, 0] + offset)

    def predicted() -> Tensor:
        logits = head(x).detach()
        return logits.softmax(1)[:, 1] if classes == 2 else logits.sigmoid()[:, 0]

    shares = math.log(COUNTS[1] / COUNTS[0])
    # 100 quantiles approximate a Gaussian to about 1 %, in the tails less
    torch.testing.assert_close(predicted(), posterior((1 - balance) * shares), atol=0.02, rtol=0)
    restore_priors(head, weights)
    torch.testing.assert_close(predicted(), posterior(shares), atol=0.02, rtol=0)
