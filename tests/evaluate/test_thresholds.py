"""Thresholds of multi-label models: the best F1 by scikit-learn's curve, chosen on validation images."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.metrics import f1_score, precision_recall_curve

import vitkit
from vitkit.cli.main import main
from vitkit.config.resolve import resolve
from vitkit.data.partition import partition
from vitkit.data.sources.open import open_data
from vitkit.data.sparse_labels import SparseLabels
from vitkit.evaluate.thresholds import MIN_POSITIVES, best_threshold, choose_thresholds
from vitkit.predict.answer_columns import AnswerColumns
from vitkit.predict.prediction import Prediction
from vitkit.predict.rows import AnswerFormat, csv_texts, write_answers
from vitkit.run_folder import RunFolder


@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.5, 0.75, 0.9, 1.0]) | st.floats(0, 1, width=32), st.booleans()
        ),
        min_size=1,
        max_size=60,
    ).filter(lambda rows: any(positive for _, positive in rows))
)
def test_the_threshold_has_the_best_f1_of_scikit_learns_curve(rows: list[tuple[float, bool]]):
    probabilities, positive = np.array([p for p, _ in rows]), np.array([y for _, y in rows])
    precision, recall, _ = precision_recall_curve(positive, probabilities)
    best = max(2 * p * r / (p + r) for p, r in zip(precision[:-1], recall[:-1], strict=True) if p + r)
    threshold = best_threshold(probabilities, np.flatnonzero(positive))
    assert 0 <= threshold <= 1
    assert f1_score(positive, probabilities >= threshold) == pytest.approx(best)


def test_calibrated_probabilities_have_their_threshold_at_half_the_best_f1():
    """The theorem of Lipton et al. (2014), for scores whose probabilities are exact."""
    probabilities = np.repeat(np.linspace(0.005, 0.995, 100), 2000)
    positive = np.concatenate([np.arange(2000) < round(2000 * p) for p in np.linspace(0.005, 0.995, 100)])
    threshold = best_threshold(probabilities, np.flatnonzero(positive))
    assert threshold == pytest.approx(f1_score(positive, probabilities >= threshold) / 2, abs=0.01)


def test_rare_labels_share_a_threshold_and_too_few_positives_leave_one_half():
    random = np.random.default_rng(0)
    labels = np.stack([np.arange(100) < 40, np.arange(100) < MIN_POSITIVES - 1], axis=1)
    probabilities = np.clip(0.3 * labels + 0.4 * random.random((100, 2)), 0, 1)
    chosen = choose_thresholds(probabilities, SparseLabels.from_dense(labels))
    assert chosen.own == 1
    assert chosen.values[0] == best_threshold(probabilities[:, 0], np.flatnonzero(labels[:, 0]))
    assert chosen.values[1] == chosen.shared == best_threshold(probabilities.ravel(), np.flatnonzero(labels))
    assert f"{chosen.shared:.2f} for 1 class with fewer than 10 images" in str(chosen)
    nothing = choose_thresholds(probabilities[:3], SparseLabels.from_dense(labels[:3, ::-1] & False))
    assert nothing.values == (0.5, 0.5)


def test_a_prediction_has_the_classes_from_their_thresholds_on():
    several = Prediction(("a", "b", "c"), np.array([0.4, 0.6, 0.2], np.float32), thresholds=(0.3, 0.7, 0.2))
    assert [answer.label for answer in several.predicted] == ["a", "c"]  # 0.2 in float32 is its own threshold
    assert several.record(1)["predicted"] == ["a", "c"]
    one = Prediction(("a", "b"), np.array([0.4, 0.6], np.float32))
    assert [answer.label for answer in one.predicted] == ["b"]
    assert "predicted" not in one.record()


def test_rows_of_a_multi_label_model_have_a_column_of_predicted_classes(tmp_path: Path):
    form = AnswerFormat(labels=("a", "b"), top=1, multilabel=True)
    columns = AnswerColumns(
        np.zeros((2, 1), np.int32), np.array([[0], [0.9]], np.float32), {0: "not an image"}, [[], [0, 1]]
    )
    block = ["2.png", "1.png"], columns
    rows = list(csv.DictReader(io.StringIO("".join(csv_texts([block], form)))))
    assert [row["predicted"] for row in rows] == ["", "a|b"]
    assert rows[1]["label_1"] == "a"
    parquet = pytest.importorskip("pyarrow.parquet")
    write_answers(tmp_path / "rows.parquet", [block], form)
    assert parquet.read_table(tmp_path / "rows.parquet")["predicted"].to_pylist() == [None, ["a", "b"]]


# from data to predictions

COLOURS = ("blue", "green", "red")
TINY = "--weights none --model mu/4 --image 8 --steps 40 --batch 32 --lr 0.003 --set optimizer.kind=adamw".split()
TINY += "--set schedule.warmup=0 augment.crop=false --workers 0 --device cpu".split()


def tagged(root: Path, count: int, splits: tuple[str, ...] = ()) -> Path:
    """Write images whose channels are bright where they have that colour as a tag."""
    random, lines = np.random.default_rng(0), ["path,split,blue,green,red" if splits else "path,blue,green,red"]
    root.mkdir()
    for index in range(count):
        tags = random.random(3) < (0.5, 0.3, 0.15)
        pixels = random.integers(0, 130, (8, 8, 3)) + 100 * tags[::-1]
        Image.fromarray(pixels.astype(np.uint8)).save(root / f"{index}.png")
        split = [splits[index % len(splits)]] if splits else []
        lines.append(",".join([f"{index}.png", *split, *map(str, tags.astype(int))]))
    (root / "list.csv").write_text("\n".join(lines) + "\n")
    return root / "list.csv"


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("thresholds")
    main(["fit", str(tagged(root / "photos", 320)), *TINY, "--out", str(root / "run")])
    return root / "run"


def test_fit_chooses_thresholds_on_images_that_are_neither_trained_on_nor_scored(fitted: Path):
    record, config = json.loads((fitted / "run.json").read_text()), RunFolder(fitted).config()
    assert config.dev == 0.1
    splits = partition(open_data(fitted.parent / "photos" / "list.csv"), **config.partition)
    assert splits.validation is not None
    assert splits.test is not None
    rows = np.concatenate([split.rows for split in (splits.train, splits.validation, splits.test)])
    assert sorted(rows) == list(range(320))  # each image is in one of the three
    assert f"for the best F1 on {len(splits.validation)} validation images" in record["thresholds"]
    thresholds = json.loads((fitted / "model.json").read_text())["provenance"]["thresholds"]
    assert len(thresholds) == 3
    assert vitkit.load(fitted).metadata.thresholds == tuple(thresholds)
    evaluation = json.loads((fitted / "evaluation.json").read_text())
    assert [row["threshold"] for row in evaluation["per_class"]] == thresholds
    assert evaluation["images"] == len(splits.test)


def test_the_thresholds_are_those_that_predict_uses(fitted: Path, capsys: pytest.CaptureFixture[str]):
    classifier = vitkit.Classifier(fitted)
    paths = [str(fitted.parent / "photos" / f"{index}.png") for index in range(8)]
    predictions = classifier(paths)
    expected = [
        {name for name, p, t in zip(COLOURS, one.probabilities, classifier.thresholds, strict=True) if p >= t}
        for one in predictions
    ]
    assert [{answer.label for answer in one.predicted} for one in predictions] == expected
    capsys.readouterr()
    main(["predict", str(fitted), *paths, "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [set(row["predicted"]) for row in rows] == expected
    main(["predict", str(fitted), *paths])
    assert capsys.readouterr().out.count("✓") == sum(map(len, expected))


def test_the_report_shows_the_thresholds(fitted: Path):
    page = (fitted / "report.html").read_text(encoding="utf-8")
    assert '<th scope="col" class="number">threshold</th>' in page
    assert "chosen on validation images for the best F1" in page


def test_thresholds_survive_the_formats_of_other_libraries(fitted: Path, tmp_path: Path):
    model = vitkit.load(fitted)
    for format in ("timm", "hf"):
        vitkit.save(model, tmp_path / format, format=format)
        assert vitkit.load(tmp_path / format).metadata.thresholds == model.metadata.thresholds


@pytest.mark.parametrize(
    ("count", "splits", "dev"),
    [
        (300, (), 0.1),
        (300, ("train", "val", "test"), 0.0),  # val is there to choose by
        (600, ("train", "train", "val"), 0.1),  # val is scored
        (120, (), 0.0),  # too few to hold out more
    ],
)
def test_images_are_held_out_for_thresholds_where_there_are_none_to_choose_by(
    count: int, splits: tuple[str, ...], dev: float, tmp_path: Path
):
    data = tagged(tmp_path / "photos", count, splits)
    settings = {"data": str(data), "weights": "none", "model": "mu/4"}
    assert resolve(settings)[0].dev == dev
    assert resolve({**settings, "dev": 0.0})[0].dev == 0.0


def test_without_validation_images_the_threshold_is_one_half_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    main(["fit", str(tagged(tmp_path / "photos", 60)), *TINY, "--steps", "1", "--out", str(tmp_path / "run")])
    assert "threshold 0.5 for each class: there are no validation images to choose by" in capsys.readouterr().out
    assert vitkit.load(tmp_path / "run").metadata.thresholds is None
    assert vitkit.Classifier(tmp_path / "run").thresholds == (0.5,) * 3
