"""The printed lines of a segmentation model's evaluation."""

from __future__ import annotations

import numpy as np

from tests.evaluate.test_segmentation_evaluation import evaluation
from vitkit.data.masks.ignore import IGNORE
from vitkit.evaluate.segmentation_confusions import class_confusions
from vitkit.evaluate.segmentation_printing import print_segmentation


def street() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return two pairs of masks: class 1 taken for class 0 at four of eight pixels, class 2 nowhere."""
    target = np.zeros((4, 4), np.uint8)
    target[:2] = 1
    target[3, 3] = IGNORE
    predicted = target.copy()
    predicted[0] = 0
    predicted[3, 3] = 0
    return [(predicted, target), (np.where(target == IGNORE, 0, target).astype(np.uint8), target)]


def test_the_lines_of_an_evaluation(capsys):
    print_segmentation(evaluation(street()))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "data        streets, test: 2 images, 3 classes"
    assert lines[1].startswith("mean IoU     76.4 %   95 % interval ")
    assert lines[1].endswith(", over 2 classes")
    assert lines[3].endswith("of 30 pixels; 6.2 % of all are ignored")
    assert lines[4].split() == ["classes", "class", "IoU", "95", "%", "interval", "accuracy", "pixels"]
    assert "class 1   75.0 %" in lines[6]
    assert lines[7].strip() == "no mask, given or predicted, has class 2"
    assert lines[8] == "confused    25.0 % of class 1 taken for class 0"
    assert "0.png" in lines[9]
    assert lines[-2:] == ["unscored    2 images without a mask", "skipped     broken.png: truncated"]


def test_confusions_are_shares_of_the_true_class_and_of_all_errors():
    (confusion,) = class_confusions(evaluation(street()))
    assert (confusion.truth, confusion.prediction, confusion.pixels) == ("class 1", "class 0", 4)
    assert (confusion.of_truth, confusion.of_errors) == (0.25, 1.0)


def test_a_perfect_model_confuses_nothing():
    perfect = [(target.clip(max=1), target) for _, target in street()]
    assert class_confusions(evaluation(perfect)) == []
