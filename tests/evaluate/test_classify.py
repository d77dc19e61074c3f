"""Evaluations equal a plain loop over the images, scored by scikit-learn."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from PIL import Image

from tests.evaluate.small_model import as_input, small_model, some_fashion
from vitkit.data.sources.dataset import Data, DataError
from vitkit.data.sources.fashion import CLASSES
from vitkit.data.sources.open import open_data
from vitkit.data.sparse_labels import SparseLabels
from vitkit.errors import ConfigError, WeightsError
from vitkit.evaluate.classify import evaluate
from vitkit.evaluate.evaluation import Evaluation

ROUNDING = 80 * torch.finfo(torch.float32).eps  # relative, of a mean over float32 logits in batches of other sizes


@cache
def by_hand() -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return logits in the order of CLASSES, labels and keys, computed with the model alone."""
    model, split = small_model(), some_fashion().splits["test"]
    with torch.no_grad():
        logits = model(torch.stack([as_input(split.read(index)) for index in range(len(split))]))
    truth = np.array([CLASSES.index(key.split("/")[1]) for key in split.keys])
    return logits.numpy(), truth, list(split.keys)


@cache
def evaluation_of_fashion() -> Evaluation:
    return evaluate(small_model(), some_fashion())


def test_scores_equal_a_loop_and_scikit_learn():
    logits, truth, _ = by_hand()
    predictions, evaluation = logits.argmax(1), evaluation_of_fashion()
    probability = torch.from_numpy(logits).softmax(1).numpy()
    assert (evaluation.data, evaluation.split, evaluation.images) == ("fashion", "test", 200)
    assert evaluation.classes == CLASSES
    assert evaluation.top1.value == sk.accuracy_score(truth, predictions)
    assert 0.3 < evaluation.top1.value < 0.95  # better than chance, with mistakes to count
    assert evaluation.top5.value == sk.top_k_accuracy_score(truth, logits, k=5)
    assert evaluation.macro_f1.value == pytest.approx(sk.f1_score(truth, predictions, average="macro"))
    assert evaluation.balanced_accuracy.value == pytest.approx(sk.balanced_accuracy_score(truth, predictions))
    assert evaluation.loss == pytest.approx(sk.log_loss(truth, probability), rel=ROUNDING)
    assert np.array(evaluation.confusion).tolist() == sk.confusion_matrix(truth, predictions).tolist()
    assert evaluation.headline == evaluation.top1


def test_every_class_has_its_own_scores():
    logits, truth, _ = by_hand()
    theirs = sk.precision_recall_fscore_support(truth, logits.argmax(1))
    rows = [(score.precision, score.recall, score.f1, score.images) for score in evaluation_of_fashion().per_class]
    np.testing.assert_allclose(rows, np.transpose(theirs))
    assert [score.name for score in evaluation_of_fashion().per_class] == list(CLASSES)


def test_mistakes_are_the_most_confident_wrong_predictions():
    logits, truth, keys = by_hand()
    probability = torch.from_numpy(logits).softmax(1).numpy()
    wrong = [index for index in range(len(truth)) if logits[index].argmax() != truth[index]]
    worst = sorted(wrong, key=lambda index: -probability[index].max())[:24]
    mistakes = evaluation_of_fashion().mistakes
    assert [mistake.index for mistake in mistakes] == worst
    assert [mistake.key for mistake in mistakes] == [keys[index] for index in worst]
    assert [mistake.truth for mistake in mistakes] == [CLASSES[truth[index]] for index in worst]
    assert [mistake.answer for mistake in mistakes] == [CLASSES[logits[index].argmax()] for index in worst]
    np.testing.assert_allclose([mistake.confidence for mistake in mistakes], probability[worst].max(1), rtol=1e-4)
    np.testing.assert_allclose([mistake.of_truth for mistake in mistakes], probability[worst, truth[worst]], rtol=1e-4)


def test_an_evaluation_round_trips_through_json():
    assert Evaluation.from_json(evaluation_of_fashion().to_json()) == evaluation_of_fashion()


def test_a_file_with_the_old_key_pictures_is_read(fixtures: Path):
    """vitkit 0.1.0 wrote this evaluation.json; the keys changed, the values did not."""
    text = (fixtures / "evaluation_with_pictures.json").read_text()
    evaluation = Evaluation.from_json(text)
    assert (evaluation.images, evaluation.unlabelled) == (9, 10)
    assert [score.images for score in evaluation.per_class] == [2, 2, 1, 2, 2, 0]
    assert sum(one.images for one in evaluation.reliability) == 9
    assert [*evaluation.left_out] == ["test/pullover/4.png"]
    expected = json.loads(text.replace('"pictures":', '"images":'))
    for row in expected["per_class"]:
        row["threshold"] = None  # of multi-label models, since
    expected |= {"inputs": [], "leaked": None, "mapped": None}  # which were not recorded
    assert json.loads(evaluation.to_json()) == expected
    assert Evaluation.from_json(evaluation.to_json()) == evaluation


def test_a_skipped_file_named_pictures_keeps_its_name():
    evaluation = replace(evaluation_of_fashion(), left_out={"pictures": "is empty"})
    assert Evaluation.from_json(evaluation.to_json()) == evaluation


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
    assert scores_of(other) == pytest.approx(scores_of(usual), rel=ROUNDING)


def test_the_order_of_a_models_classes_does_not_matter():
    other = evaluate(small_model(CLASSES[::-1]), some_fashion())
    assert scores_of(other) == pytest.approx(
        scores_of(evaluation_of_fashion()), rel=0.02
    )  # intervals: other resamples are drawn
    assert (other.top1, other.top5) == (evaluation_of_fashion().top1, evaluation_of_fashion().top5)
    assert other.macro_f1.value == pytest.approx(evaluation_of_fashion().macro_f1.value)
    assert np.array(other.confusion)[::-1, ::-1].tolist() == np.array(evaluation_of_fashion().confusion).tolist()
    assert [mistake.truth for mistake in other.mistakes] == [
        mistake.truth for mistake in evaluation_of_fashion().mistakes
    ]


def test_classes_of_one_side_only_are_named_and_their_images_not_scored():
    logits, truth, _ = by_hand()
    model = small_model((*CLASSES[:8], "hat"))
    with torch.no_grad():
        model.head.logits.bias[8] -= 1  # no tie: the hat has the weights of fashion's first class
    evaluation = evaluate(model, some_fashion())
    assert evaluation.missing == ("hat",)
    assert set(evaluation.extra) == {"bag", "ankle boot"}
    assert (evaluation.images, evaluation.unlabelled) == (160, 40)
    scored = truth < 8
    own = np.column_stack([logits[scored, :8], logits[scored, 0] - 1])
    assert evaluation.top1.value == sk.accuracy_score(truth[scored], own.argmax(1))
    assert evaluation.per_class[8].images == 0
    assert evaluation.per_class[8].recall is None


def test_mistakes_have_indices_of_the_complete_split_when_images_were_skipped():
    data = some_fashion()
    for mistake in evaluate(small_model((*CLASSES[1:], "hat")), data).mistakes:
        assert data.splits["test"].keys[mistake.index] == mistake.key


def on_disk(root: Path, broken: int) -> Path:
    """Write 150 images of fashion into class folders and truncate some of them."""
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


def test_a_broken_image_is_skipped_and_named(tmp_path: Path):
    evaluation = evaluate(small_model(), open_data(on_disk(tmp_path, broken=1)))
    assert evaluation.images == 149
    assert [key.rpartition("/")[2] for key in evaluation.left_out] == ["000.png"]
    assert all(evaluation.left_out.values())


def test_many_broken_images_are_an_error(tmp_path: Path):
    with pytest.raises(DataError, match="3 of 150 images could not be decoded"):
        evaluate(small_model(), open_data(on_disk(tmp_path, broken=3)))


def test_the_scoring_split_is_test_unless_another_is_named():
    data = some_fashion()
    data = replace(data, splits={"val": data.splits["test"].select(np.arange(30)), **data.splits})
    assert evaluate(small_model(), data).split == "test"
    assert evaluate(small_model(), data, "validation").images == 30
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


def test_data_without_a_common_class_are_refused_with_both_lists():
    with pytest.raises(DataError) as error:
        evaluate(small_model(), renamed(some_fashion(50), tuple(f"pet {number}" for number in range(10))))
    assert "no class in common" in str(error.value)
    assert "t-shirt or top" in str(error.value)
    assert "pet 3" in str(error.value)


def test_weights_without_class_names_are_not_matched_by_index():
    model = small_model()
    model.metadata = replace(model.metadata, labels=None)
    with pytest.raises(DataError, match="have no names for their 10 classes") as error:
        evaluate(model, some_fashion(50))
    assert "ankle boot" in str(error.value)
    assert "--labels FILE" in str(error.value)


SYNSETS = tuple(f"n{number:08d}" for number in range(1000))
ENGLISH = ("tench, Tinca tinca", *(f"thing {number}" for number in range(998)), "toilet tissue, toilet paper")


@pytest.mark.parametrize("labels", [None, ENGLISH])
def test_imagenets_synsets_are_matched_by_index_with_a_warning(labels, caplog: pytest.LogCaptureFixture):
    model = small_model(ENGLISH)
    model.metadata = replace(model.metadata, labels=labels)
    with torch.no_grad():
        model.head.logits.bias[7] = 100.0  # every prediction
    data = renamed(some_fashion(50), SYNSETS)
    data.splits["test"].labels[:5] = 7
    data.splits["test"].labels[5:] = 8
    evaluation = evaluate(model, data)
    assert evaluation.top1.value == 5 / 20
    assert evaluation.classes == (labels or SYNSETS)
    assert "by index" in caplog.text


def test_a_thousand_other_names_are_not_imagenet():
    model = small_model(tuple(f"thing {number}" for number in range(1000)))
    with pytest.raises(DataError, match="no class in common"):
        evaluate(model, renamed(some_fashion(50), SYNSETS))


def test_a_model_without_a_head_is_an_error_that_names_fit():
    model = small_model()
    model.replace_head(0)
    with pytest.raises(ConfigError, match="vitkit fit"):
        evaluate(model, some_fashion(50))


def test_logits_that_are_not_finite_are_an_error():
    model = small_model()
    with torch.no_grad():
        model.head.logits.bias[3] = float("nan")
    with pytest.raises(WeightsError, match="logits are not finite for 20 of 20 images"):
        evaluate(model, some_fashion(50))


def test_a_split_without_labels_is_an_error():
    data = some_fashion(50)
    data.splits["test"].labels[:] = -1
    with pytest.raises(DataError, match="no labels to score against"):
        evaluate(small_model(), data, "test")


def test_a_split_without_any_class_of_the_model_is_an_error():
    data = some_fashion(50)
    only_bags = {"test": data.splits["test"].select(data.splits["test"].labels == data.classes.index("bag"))}
    with pytest.raises(DataError, match="has a class of the model"):
        evaluate(small_model(CLASSES[:5]), replace(data, splits=only_bags))


# Multi-label data


def with_several_labels(data: Data) -> tuple[Data, np.ndarray]:
    """Return the data with a second label, "warm", for coats and pullovers, and without labels for a tenth."""
    split = data.splits["test"]
    table = np.zeros((len(split), 11), bool)
    table[np.arange(len(split)), split.labels] = True
    table[:, 10] = table[:, data.classes.index("coat")] | table[:, data.classes.index("pullover")]
    table[::10] = False
    several = replace(split, labels=SparseLabels.from_dense(table))
    return replace(data, classes=(*data.classes, "warm"), multilabel=True, splits={"test": several}), table


def test_several_labels_are_scored_by_average_precision():
    logits, _, keys = by_hand()
    data, table = with_several_labels(some_fashion())
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


def test_classes_that_the_data_do_not_have_are_not_scored():
    """A class of the model that no image could have adds no loss, mistake or score."""
    data, _ = with_several_labels(some_fashion())
    plain, with_hat = (evaluate(small_model(names), data) for names in (CLASSES, (*CLASSES, "hat")))
    assert with_hat.missing == ("hat",)
    assert with_hat.loss == pytest.approx(plain.loss, rel=ROUNDING)
    assert with_hat.mean_average_precision.value == pytest.approx(plain.mean_average_precision.value)
    assert (with_hat.per_class[10].precision, with_hat.per_class[10].average_precision) == (None, None)
    assert not any("hat" in mistake.answer.split(", ") for mistake in with_hat.mistakes)


def test_a_multilabel_model_is_scored_on_single_labels():
    model = small_model()
    model.metadata = replace(model.metadata, provenance={"multilabel": True})
    logits, truth, _ = by_hand()
    evaluation = evaluate(model, some_fashion())
    assert evaluation.multilabel
    assert evaluation.mean_average_precision.value == pytest.approx(
        sk.average_precision_score(np.eye(10)[truth], logits)
    )
