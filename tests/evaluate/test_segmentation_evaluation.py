"""The record of scored masks: its way through JSON, damaged files, and what is chosen to be shown."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.evaluate.test_segmentation_scores import Masks, count
from vitkit.data.groups import Leak
from vitkit.errors import ConfigError
from vitkit.evaluate.segmentation_evaluation import SegmentationEvaluation, is_segmentation
from vitkit.evaluate.segmentation_scores import score_masks
from vitkit.evaluate.segmentation_summary import WORST, summarise_masks


def evaluation(pairs: list[Masks], classes: int = 3, leaked: np.ndarray | None = None) -> SegmentationEvaluation:
    names = [f"class {number}" for number in range(classes)]
    fields = summarise_masks(count(classes, pairs), names, [f"{i}.png" for i in range(len(pairs))], leaked)
    return SegmentationEvaluation(
        data="streets",
        split="test",
        classes=tuple(names),
        palette=((0, 0, 0), (128, 0, 0), (0, 128, 0)),
        left_out={"broken.png": "truncated"},
        unlabelled=2,
        **fields,
    )


def random_pairs(images: int, seed: int = 0) -> list[Masks]:
    random = np.random.default_rng(seed)
    return [tuple(random.integers(0, 3, (5, 5), np.uint8) for _ in range(2)) for _ in range(images)]


def test_the_record_comes_back_from_json():
    ours = evaluation(random_pairs(5))
    text = ours.to_json()
    assert SegmentationEvaluation.from_json(text) == ours
    assert is_segmentation(text)
    assert not any(map(is_segmentation, ('{"top1": 1}', "[]", "{", "")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "classify"}, "not the evaluation of a segmentation model"),
        ({"confusion": [[1]]}, "confusion matrix is not 3 x 3"),
        ({"per_class": []}, "table of 0 rows is not of its classes"),
        ({"classes": ["a", "b", "c"]}, "table of 3 rows is not of its classes"),
        ({"palette": [[0, 0, 256]] * 3}, "not 0 to 255"),
        ({"pixels": 0}, "a count below 0, no pixels"),
        ({"confusion": [[-1, 0, 0]] * 3}, "a count below 0"),
        ({"palette": [[0, 0, 0]]}, "1 colours for 3 classes"),
        ({"mean_iou": None}, "mean_iou should be an object"),
        ({"worst": [{"key": "a"}]}, r"worst\[0\]"),
    ],
)
def test_a_damaged_record_is_named(change, message):
    record = json.loads(evaluation(random_pairs(2)).to_json()) | change
    with pytest.raises(ConfigError, match=message):
        SegmentationEvaluation.from_json(json.dumps(record), "run/evaluation.json")


def test_the_worst_images_come_first_and_the_typical_ones_span_all():
    pairs = random_pairs(30)
    ours = evaluation(pairs)
    values = count(3, pairs).per_image.mean_iou
    assert [image.index for image in ours.worst] == np.argsort(values, kind="stable")[:WORST].tolist()
    assert (ours.typical[0].mean_iou, ours.typical[-1].mean_iou) == (values.max(), values.min())


def test_leaked_images_are_scored_apart():
    pairs = random_pairs(6)
    leaked = np.array([Leak.IDENTICAL, Leak.NONE, Leak.NONE, Leak.NEAR, Leak.NONE, Leak.NONE], np.uint8)
    ours = evaluation(pairs, leaked=leaked).leaked
    assert ours is not None
    assert ours.others == 4
    rest = [pair for pair, kind in zip(pairs, leaked, strict=True) if kind == Leak.NONE]
    assert ours.mean_iou == score_masks(count(3, rest)).mean_iou
    assert "2 are copies of training images" in ours.sentence()
    assert evaluation(pairs, leaked=np.zeros(6, np.uint8)).leaked is None
