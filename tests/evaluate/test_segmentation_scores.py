"""Scores of masks equal torchmetrics' and those of plain sums in NumPy, on random and on degenerate masks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassJaccardIndex
from torchmetrics.functional.segmentation import mean_iou

from vitkit.data.masks.ignore import IGNORE
from vitkit.data.sources.dataset import DataError
from vitkit.evaluate.evaluation import Estimate
from vitkit.evaluate.segmentation_scores import MaskCounts, pixel_confusion, score_masks

Masks = tuple[np.ndarray, np.ndarray]  # predicted, given


@st.composite
def pairs_of_masks(draw) -> tuple[int, list[Masks]]:
    """Draw 1 to 4 pairs of masks; any of them may lack classes, or be ignored everywhere."""
    classes = draw(st.integers(1, 6))
    random = np.random.default_rng(draw(st.integers(0, 10_000)))
    pairs = []
    for _ in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, 9)), draw(st.integers(1, 9))
        predicted, target = (random.integers(0, draw(st.integers(1, classes)), size, np.uint8) for _ in range(2))
        ignored = draw(st.sampled_from((0.0, 0.3, 1.0)))
        pairs.append((predicted, np.where(random.random(size) < ignored, IGNORE, target).astype(np.uint8)))
    return classes, pairs


def count(classes: int, pairs: list[Masks]) -> MaskCounts:
    counts = MaskCounts(classes)
    for index, (predicted, target) in enumerate(pairs):
        counts.add(index, predicted, target)
    return counts


def joined(pairs: list[Masks]) -> tuple[torch.Tensor, torch.Tensor]:
    predicted, target = (np.concatenate([masks[side].ravel() for masks in pairs]).astype(int) for side in (0, 1))
    return torch.from_numpy(predicted), torch.from_numpy(target)


@given(pairs_of_masks())
@settings(deadline=None, max_examples=200)
def test_scores_equal_torchmetrics(drawn):
    classes, pairs = drawn
    predicted, target = joined(pairs)
    counts = count(classes, pairs)
    if bool((target == IGNORE).all()):
        with pytest.raises(DataError, match="ignore every pixel"):
            score_masks(counts)
        return
    scores = score_masks(counts)

    def theirs(metric, **options):
        return metric(num_classes=classes, ignore_index=IGNORE, **options)(predicted, target)

    if classes > 1:  # torchmetrics asks for two
        assert torch.equal(theirs(MulticlassConfusionMatrix), torch.from_numpy(counts.confusion))
        assert scores.mean_iou.value == pytest.approx(float(theirs(MulticlassJaccardIndex, average="macro")), abs=1e-6)
        assert scores.pixel_accuracy.value == pytest.approx(
            float(theirs(MulticlassAccuracy, average="micro")), abs=1e-6
        )
        ious = theirs(MulticlassJaccardIndex, average="none")
        accuracies = theirs(MulticlassAccuracy, average="none")
        kept = target != IGNORE
        for number, (iou, accuracy) in enumerate(zip(scores.iou, counts.total.accuracy, strict=True)):
            in_target, in_predicted = (bool((masks[kept] == number).any()) for masks in (target, predicted))
            assert (iou is None) == (not in_target and not in_predicted)
            assert np.isnan(accuracy) == (not in_target)
            assert iou is None or iou.value == pytest.approx(float(ious[number]), abs=1e-6)
            assert not in_target or accuracy == pytest.approx(float(accuracies[number]), abs=1e-6)
    for estimate in (scores.mean_iou, scores.pixel_accuracy, scores.mean_accuracy, *filter(None, scores.iou)):
        assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1


@given(pairs_of_masks())
@settings(deadline=None)
def test_the_mean_iou_of_each_image_equals_torchmetrics(drawn):
    classes, pairs = drawn
    ours = count(classes, pairs).per_image.mean_iou
    for value, (predicted, target) in zip(ours, pairs, strict=True):
        kept = target != IGNORE  # torchmetrics' MeanIoU ignores no pixels: they are cut out
        if not kept.any():
            assert np.isnan(value)
            continue
        masks = (torch.from_numpy(mask[kept].astype(int))[None] for mask in (predicted, target))
        per_class = mean_iou(*masks, num_classes=classes, per_class=True, input_format="index")[0]
        occurs = np.isin(np.arange(classes), np.concatenate([predicted[kept], target[kept]]))
        assert value == pytest.approx(float(per_class[torch.from_numpy(occurs)].mean()), abs=1e-6)


def test_a_perfect_mask_of_one_class_scores_one():
    scores = score_masks(count(3, [(np.full((4, 4), 1, np.uint8), np.full((4, 4), 1, np.uint8))]))
    assert (scores.mean_iou.value, scores.pixel_accuracy.value) == (1, 1)
    assert scores.iou[0] is None
    assert scores.iou[2] is None
    assert scores.mean_iou.low < 0.5  # one image proves little


def test_a_class_that_was_only_predicted_counts_as_zero():
    given_mask = np.zeros((2, 2), np.uint8)
    predicted = np.array([[0, 0], [0, 1]], np.uint8)
    assert score_masks(count(3, [(predicted, given_mask)])).mean_iou.value == pytest.approx((0.75 + 0) / 2)


def test_predictions_on_ignored_pixels_do_not_bring_a_class_in():
    given_mask = np.array([[0, IGNORE]], np.uint8)
    scores = score_masks(count(2, [(np.array([[0, 1]], np.uint8), given_mask)]))
    assert scores.mean_iou.value == 1
    assert scores.iou[1] is None


def test_numbers_of_no_class_are_an_error():
    zeros, two = torch.zeros(2, 2, dtype=torch.uint8), torch.full((2, 2), 2, dtype=torch.uint8)
    for masks in ((two, zeros), (zeros, two)):
        with pytest.raises(ValueError, match="other numbers than those of 2 classes"):
            pixel_confusion(*masks, 2)


def test_counts_of_processes_join_to_the_counts_of_one():
    random = np.random.default_rng(0)
    pairs = [tuple(random.integers(0, 4, (6, 7), np.uint8) for _ in range(2)) for _ in range(7)]
    joint, second = count(4, pairs[:4]), MaskCounts(4)
    for index, (predicted, target) in enumerate(pairs[4:], 4):
        second.add(index, predicted, target)
    joint.join(second)
    assert score_masks(joint) == score_masks(count(4, pairs))
    assert np.array_equal(joint.confusion, count(4, pairs).confusion)


def test_intervals_cover_the_true_scores_and_are_as_wide_as_scores_spread():
    """The truth is that of 4,000 images of a population, from which 60 are drawn many times."""
    random = np.random.default_rng(1)
    population = [image_of(random) for _ in range(4_000)]
    truth, drawn = estimates(count(4, population)), []
    for _ in range(100):
        drawn.append(estimates(count(4, [population[row] for row in random.integers(0, len(population), 60)])))
    for number, true in enumerate(truth):
        own = [scores[number] for scores in drawn]
        assert sum(one.low <= true.value <= one.high for one in own) >= 88
        width = np.mean([one.high - one.low for one in own])
        assert width == pytest.approx(2 * 1.96 * np.std([one.value for one in own]), rel=0.25)


def estimates(counts: MaskCounts) -> list[Estimate]:
    """Return the mean IoU, and that of each class."""
    scores = score_masks(counts)
    return [scores.mean_iou, *filter(None, scores.iou)]


def image_of(random: np.random.Generator) -> Masks:
    """Draw masks of an image whose difficulty and classes are its own; class 3 is rare."""
    present = [0, 1, 2, 3] if random.random() < 0.3 else [0, 1, 2]
    target = random.choice(present, (8, 8)).astype(np.uint8)
    wrong = random.random((8, 8)) < random.beta(2, 6)
    return np.where(wrong, random.integers(0, 4, (8, 8)), target).astype(np.uint8), target
