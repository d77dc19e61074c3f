"""Evaluations equal a plain loop over the pictures, scored by scikit-learn."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from PIL import Image

from tests.evaluate.small import as_input, small_model, some_fashion
from vitkit.data.sources.base import Data, DataError
from vitkit.data.sources.fashion import CLASSES
from vitkit.data.sources.open import open_data
from vitkit.errors import ConfigError, WeightsError
from vitkit.evaluate.classify import evaluate
from vitkit.evaluate.evaluation import Evaluation


@cache
def by_hand() -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Logits in the order of CLASSES, truths, keys: nothing of ours but the model."""
    model, split = small_model(), some_fashion().splits["test"]
    with torch.no_grad():
        logits = model(torch.stack([as_input(split.read(index)) for index in range(len(split))]))
    truth = np.array([CLASSES.index(key.split("/")[1]) for key in split.keys])
    return logits.numpy(), truth, list(split.keys)


@cache
def found() -> Evaluation:
    return evaluate(small_model(), some_fashion())


def test_scores_equal_a_loop_and_scikit_learn():
    logits, truth, _ = by_hand()
    answer, evaluation = logits.argmax(1), found()
    probability = torch.from_numpy(logits).softmax(1).numpy()
    assert (evaluation.data, evaluation.split, evaluation.pictures) == ("fashion", "test", 200)
    assert evaluation.classes == CLASSES
    assert evaluation.top1.value == sk.accuracy_score(truth, answer)
    assert 0.3 < evaluation.top1.value < 0.95  # the model knows something, and makes mistakes to count
    assert evaluation.top5.value == sk.top_k_accuracy_score(truth, logits, k=5)
    assert evaluation.macro_f1.value == pytest.approx(sk.f1_score(truth, answer, average="macro"))
    assert evaluation.balanced_accuracy.value == pytest.approx(sk.balanced_accuracy_score(truth, answer))
    assert evaluation.loss == pytest.approx(sk.log_loss(truth, probability), rel=1e-5)
    assert np.array(evaluation.confusion).tolist() == sk.confusion_matrix(truth, answer).tolist()
    assert evaluation.headline == evaluation.top1


def test_every_class_has_its_own_scores():
    logits, truth, _ = by_hand()
    theirs = sk.precision_recall_fscore_support(truth, logits.argmax(1))
    rows = [(score.precision, score.recall, score.f1, score.pictures) for score in found().per_class]
    np.testing.assert_allclose(rows, np.transpose(theirs))
    assert [score.name for score in found().per_class] == list(CLASSES)


def test_mistakes_are_the_most_confident_wrong_answers():
    logits, truth, keys = by_hand()
    probability = torch.from_numpy(logits).softmax(1).numpy()
    wrong = [index for index in range(len(truth)) if logits[index].argmax() != truth[index]]
    worst = sorted(wrong, key=lambda index: -probability[index].max())[:24]
    mistakes = found().mistakes
    assert [mistake.index for mistake in mistakes] == worst
    assert [mistake.key for mistake in mistakes] == [keys[index] for index in worst]
    assert [mistake.truth for mistake in mistakes] == [CLASSES[truth[index]] for index in worst]
    assert [mistake.answer for mistake in mistakes] == [CLASSES[logits[index].argmax()] for index in worst]
    np.testing.assert_allclose([mistake.confidence for mistake in mistakes], probability[worst].max(1), rtol=1e-4)
    np.testing.assert_allclose([mistake.of_truth for mistake in mistakes], probability[worst, truth[worst]], rtol=1e-4)


def test_an_evaluation_survives_its_file():
    assert Evaluation.from_json(found().to_json()) == found()


def scores_of(evaluation: Evaluation) -> list[float]:
    return [
        evaluation.loss,
        evaluation.calibration_error,
        *(
            number
            for estimate in (evaluation.top1, evaluation.top5, evaluation.macro_f1, evaluation.balanced_accuracy)
            for number in (estimate.value, estimate.low, estimate.high)
        ),
    ]


@pytest.mark.parametrize(("batch", "workers"), [(1, 0), (7, 2), (1000, 0)])
def test_scores_do_not_depend_on_batches_or_workers(batch: int, workers: int):
    usual = evaluate(small_model(), some_fashion(20))
    other = evaluate(small_model(), some_fashion(20), batch=batch, workers=workers)
    assert scores_of(other) == pytest.approx(scores_of(usual), rel=1e-5)


def test_the_order_of_a_models_classes_does_not_matter():
    other = evaluate(small_model(CLASSES[::-1]), some_fashion())
    assert scores_of(other) == pytest.approx(scores_of(found()), rel=0.02)  # intervals: other resamples are drawn
    assert (other.top1, other.top5) == (found().top1, found().top5)
    assert other.macro_f1.value == pytest.approx(found().macro_f1.value)
    assert np.array(other.confusion)[::-1, ::-1].tolist() == np.array(found().confusion).tolist()
    assert [mistake.truth for mistake in other.mistakes] == [mistake.truth for mistake in found().mistakes]


def test_classes_of_one_side_only_are_named_and_their_pictures_not_scored():
    logits, truth, _ = by_hand()
    evaluation = evaluate(small_model((*CLASSES[:8], "hat")), some_fashion())
    assert evaluation.missing == ("hat",)
    assert set(evaluation.extra) == {"bag", "ankle boot"}
    assert (evaluation.pictures, evaluation.unlabelled) == (160, 40)
    asked = truth < 8
    own = np.column_stack([logits[asked, :8], logits[asked, 0]])  # the hat has the logit of fashion's first class
    assert evaluation.top1.value == sk.accuracy_score(truth[asked], own.argmax(1))
    assert evaluation.per_class[8].pictures == 0
    assert evaluation.per_class[8].recall is None


def test_mistakes_point_into_the_whole_split_when_pictures_were_skipped():
    data = some_fashion()
    for mistake in evaluate(small_model((*CLASSES[1:], "hat")), data).mistakes:
        assert data.splits["test"].keys[mistake.index] == mistake.key


def on_disk(root: Path, broken: int) -> Path:
    """150 pictures of fashion in class folders, some of them cut short."""
    data = some_fashion(6)
    split = data.splits["test"]
    for index in range(150):
        folder = root / "test" / data.classes[split.labels[index]]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{index:03d}.png"
        Image.fromarray(split.read(index)[..., 0]).save(path)
        if index < broken:
            path.write_bytes(path.read_bytes()[:60])
    return root


def test_a_broken_picture_is_left_out_and_named(tmp_path: Path):
    evaluation = evaluate(small_model(), open_data(on_disk(tmp_path, broken=1)))
    assert evaluation.pictures == 149
    assert [key.rpartition("/")[2] for key in evaluation.left_out] == ["000.png"]
    assert all(evaluation.left_out.values())


def test_many_broken_pictures_are_an_error(tmp_path: Path):
    with pytest.raises(DataError, match="3 of 150 pictures could not be decoded"):
        evaluate(small_model(), open_data(on_disk(tmp_path, broken=3)))


def test_the_scoring_split_is_test_unless_another_is_named():
    data = some_fashion()
    data = replace(data, splits={"val": data.splits["test"].select(np.arange(30)), **data.splits})
    assert evaluate(small_model(), data).split == "test"
    assert evaluate(small_model(), data, "validation").pictures == 30
    with pytest.raises(DataError, match=r"has no split train\.\n  found  val, test"):
        evaluate(small_model(), data, "train")


def test_five_classes_have_no_top_five():
    assert evaluate(small_model(CLASSES[:5]), some_fashion()).top5 is None


def test_the_model_keeps_its_mode_and_its_names():
    model = small_model().train()
    evaluate(model, some_fashion(50))
    assert model.training
    assert model.metadata.labels == CLASSES


def renamed(data: Data, names: tuple[str, ...]) -> Data:
    return replace(data, classes=names)


def test_strangers_are_refused_with_both_lists():
    with pytest.raises(DataError) as error:
        evaluate(small_model(), renamed(some_fashion(50), tuple(f"pet {number}" for number in range(10))))
    assert "no class in common" in str(error.value)
    assert "t-shirt or top" in str(error.value)
    assert "pet 3" in str(error.value)


def test_nameless_weights_are_not_matched_by_place():
    model = small_model()
    model.metadata = replace(model.metadata, labels=None)
    with pytest.raises(DataError, match="carry no names for their 10 classes") as error:
        evaluate(model, some_fashion(50))
    assert "ankle boot" in str(error.value)
    assert "--labels FILE" in str(error.value)


SYNSETS = tuple(f"n{number:08d}" for number in range(1000))
ENGLISH = ("tench, Tinca tinca", *(f"thing {number}" for number in range(998)), "toilet tissue, toilet paper")


@pytest.mark.parametrize("labels", [None, ENGLISH])
def test_imagenets_synsets_are_matched_by_place_and_that_is_said(labels, caplog: pytest.LogCaptureFixture):
    model = small_model(ENGLISH)
    model.metadata = replace(model.metadata, labels=labels)
    with torch.no_grad():
        model.head.logits.bias[7] = 100.0  # every answer
    data = renamed(some_fashion(50), SYNSETS)
    data.splits["test"].labels[:5] = 7
    data.splits["test"].labels[5:] = 8
    evaluation = evaluate(model, data)
    assert evaluation.top1.value == 5 / 20
    assert evaluation.classes == (labels or SYNSETS)
    assert "by place" in caplog.text


def test_a_thousand_other_names_are_not_imagenet():
    model = small_model(tuple(f"thing {number}" for number in range(1000)))
    with pytest.raises(DataError, match="no class in common"):
        evaluate(model, renamed(some_fashion(50), SYNSETS))


def test_a_model_without_a_head_is_to_be_fitted_first():
    model = small_model()
    model.replace_head(0)
    with pytest.raises(ConfigError, match="vitkit fit"):
        evaluate(model, some_fashion(50))


def test_answers_that_are_no_numbers_are_no_scores():
    model = small_model()
    with torch.no_grad():
        model.head.logits.bias[3] = float("nan")
    with pytest.raises(WeightsError, match="20 of 20 pictures with no finite numbers"):
        evaluate(model, some_fashion(50))


def test_unlabelled_pictures_cannot_score():
    data = some_fashion(50)
    data.splits["test"].labels[:] = -1
    with pytest.raises(DataError, match="no labels to score against"):
        evaluate(small_model(), data, "test")


def test_a_split_of_strange_classes_only_cannot_score():
    data = some_fashion(50)
    only_bags = {"test": data.splits["test"].select(data.splits["test"].labels == data.classes.index("bag"))}
    with pytest.raises(DataError, match="has a class of the model"):
        evaluate(small_model(CLASSES[:5]), replace(data, splits=only_bags))


# Several labels per picture


def several(data: Data) -> tuple[Data, np.ndarray]:
    """Each picture also "warm" when it is a coat or a pullover; a tenth of the labels lost."""
    split = data.splits["test"]
    table = np.zeros((len(split), 11), bool)
    table[np.arange(len(split)), split.labels] = True
    table[:, 10] = table[:, data.classes.index("coat")] | table[:, data.classes.index("pullover")]
    table[::10] = False
    return replace(
        data, classes=(*data.classes, "warm"), multilabel=True, splits={"test": replace(split, labels=table)}
    ), table


def test_several_labels_are_scored_by_average_precision():
    logits, _, keys = by_hand()
    data, table = several(some_fashion())
    evaluation = evaluate(small_model(), data)
    truth = table[:, [data.classes.index(name) for name in CLASSES]]
    assert evaluation.multilabel
    assert evaluation.extra == ("warm",)
    assert evaluation.mean_average_precision.value == pytest.approx(sk.average_precision_score(truth, logits))
    assert evaluation.headline.low < evaluation.headline.value < evaluation.headline.high
    areas = sk.average_precision_score(truth, logits, average=None)
    assert [score.average_precision for score in evaluation.per_class] == pytest.approx(areas.tolist())
    assert [score.f1 for score in evaluation.per_class] == pytest.approx(
        sk.f1_score(truth, logits > 0, average=None).tolist()
    )
    losses = torch.nn.functional.binary_cross_entropy_with_logits(
        torch.from_numpy(logits), torch.from_numpy(truth).float(), reduction="none"
    ).numpy()
    assert evaluation.loss == pytest.approx(losses.mean(), rel=1e-4)
    wrong = [index for index in np.argsort(-losses.mean(1)) if ((logits[index] > 0) != truth[index]).any()]
    assert [mistake.key for mistake in evaluation.mistakes] == [keys[index] for index in wrong[:24]]
    first = evaluation.mistakes[0]
    assert first.answer == (", ".join(np.array(CLASSES)[logits[first.index] > 0]) or "nothing")
    assert evaluation.top1 is None
    assert Evaluation.from_json(evaluation.to_json()) == evaluation


def test_what_the_data_do_not_know_they_cannot_deny():
    """A model's class that no picture could have is neither loss nor mistake nor score."""
    data, _ = several(some_fashion())
    plain, with_hat = (evaluate(small_model(names), data) for names in (CLASSES, (*CLASSES, "hat")))
    assert with_hat.missing == ("hat",)
    assert with_hat.loss == pytest.approx(plain.loss, rel=1e-5)
    assert with_hat.mean_average_precision.value == pytest.approx(plain.mean_average_precision.value)
    assert (with_hat.per_class[10].precision, with_hat.per_class[10].average_precision) == (None, None)
    assert not any("hat" in mistake.answer.split(", ") for mistake in with_hat.mistakes)


def test_a_model_of_several_labels_meets_pictures_of_one():
    model = small_model()
    model.metadata = replace(model.metadata, provenance={"multilabel": True})
    logits, truth, _ = by_hand()
    evaluation = evaluate(model, some_fashion())
    assert evaluation.multilabel
    assert evaluation.mean_average_precision.value == pytest.approx(
        sk.average_precision_score(np.eye(10)[truth], logits)
    )
