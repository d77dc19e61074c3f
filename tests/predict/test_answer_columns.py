"""Columns of predictions hold what a prediction of each image alone would say, in every format."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitkit.errors import VitkitError
from vitkit.predict.answer_columns import (
    AnswerColumns,
    answer_columns,
    compute_answers,
    read_answers,
    top_classes,
)
from vitkit.predict.image_stream import ImageOutputs
from vitkit.predict.prediction import Prediction
from vitkit.predict.rows import AnswerFormat, csv_texts, json_texts, write_answers

LABELS = ("ant", 'a "bee", or two', "=cat", "dog\rdog", "ü\n")
THRESHOLDS = (0.5, 0.25, 0.5, 0.75, 1.0)
NAMES = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=6)
# few different values, so that many are equal
ROWS = st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, 1e-40]), min_size=5, max_size=5), max_size=6)


@given(ROWS.filter(len), st.integers(1, 5))
def test_the_top_classes_are_those_of_a_stable_sort(rows: list[list[float]], top: int):
    values = np.array(rows, np.float32)
    classes, probabilities = top_classes(torch.from_numpy(values), top)
    expected = np.argsort(-values, axis=1, kind="stable")[:, :top]
    np.testing.assert_array_equal(classes.numpy(), expected)
    np.testing.assert_array_equal(probabilities.numpy(), np.take_along_axis(values, expected, axis=1))


def table(
    rows: list[list[float]], names: list[str], broken: set[int], top: int, multilabel: bool
) -> tuple[list[str], AnswerColumns, list[Prediction]]:
    """Return names, columns, and the predictions of the images one by one."""
    thresholds = THRESHOLDS if multilabel else None
    values = np.array(rows, np.float32).reshape(-1, 5)
    names = [f"{index}{name}" for index, name in zip(range(len(values)), names * 6, strict=False)]
    errors = {row: f"broken, {names[row]}" for row in broken if row < len(values)}
    decoded = np.array([row for row in range(len(values)) if row not in errors], np.int64)
    outputs = None
    if len(decoded):
        computed = compute_answers(torch.from_numpy(values[decoded]), top, multilabel)
        outputs = tuple(output.numpy() for output in computed)
    columns = answer_columns(ImageOutputs(0, len(values), decoded, outputs, errors), top, thresholds)
    predictions = [
        Prediction(LABELS, name=name, error=errors[row], thresholds=thresholds)
        if row in errors
        else Prediction(LABELS, values[row], name=name, thresholds=thresholds)
        for row, name in enumerate(names)
    ]
    return names, columns, predictions


TABLES = st.builds(
    table, ROWS.filter(len), st.lists(NAMES, min_size=1), st.sets(st.integers(0, 5)), st.integers(1, 5), st.booleans()
)


@given(TABLES)
def test_json_lines_are_the_records_of_the_predictions(made: tuple[list[str], AnswerColumns, list[Prediction]]):
    names, columns, predictions = made
    top, multilabel = columns.classes.shape[1], columns.predicted is not None
    form = AnswerFormat(labels=LABELS, top=top, multilabel=multilabel)
    [text] = json_texts([(names, columns)], form)
    assert text == "".join(json.dumps(prediction.record(top)) + "\n" for prediction in predictions)


@given(TABLES)
def test_csv_has_the_fields_of_the_predictions_for_any_reader(
    made: tuple[list[str], AnswerColumns, list[Prediction]],
):
    names, columns, predictions = made
    top, multilabel = columns.classes.shape[1], columns.predicted is not None
    form = AnswerFormat(labels=LABELS, top=top, multilabel=multilabel, csv_raw=True)
    text = "".join(csv_texts([(names, columns)], form))
    _, *rows = csv.reader(io.StringIO(text, newline=""))
    for row, prediction in zip(rows, predictions, strict=True):
        record = prediction.record(top)
        predicted = ["|".join(record["predicted"])] if multilabel else []
        answers = [str(value) for one in record["answers"] for value in (one["label"], one["probability"])]
        expected = [record["image"], record["error"] or "", *predicted, *answers]
        assert row == expected + [""] * (len(rows[0]) - len(expected))


@given(made=TABLES)
def test_parquet_has_the_columns_of_the_predictions(
    made: tuple[list[str], AnswerColumns, list[Prediction]], tmp_path_factory: pytest.TempPathFactory
):
    names, columns, predictions = made
    top, multilabel = columns.classes.shape[1], columns.predicted is not None
    form, path = AnswerFormat(labels=LABELS, top=top, multilabel=multilabel), tmp_path_factory.mktemp("a") / "a.parquet"
    middle = len(names) // 2
    blocks = [(names[part], cut(columns, part)) for part in (slice(0, middle), slice(middle, None))]
    write_answers(path, [block for block in blocks if block[0]], form)
    for row, prediction in zip(pyarrow.parquet.read_table(path).to_pylist(), predictions, strict=True):
        record = prediction.record(top)
        failed = record["error"] is not None
        assert row["image"] == record["image"].encode("utf-8", "backslashreplace").decode()
        assert (row["label"], row["probability"]) == (record["label"], record["probability"])
        assert row["labels"] == (None if failed else [one["label"] for one in record["answers"]])
        assert row["probabilities"] == (None if failed else [one["probability"] for one in record["answers"]])
        assert row.get("predicted") == (None if failed else record.get("predicted"))
    path.unlink()


def cut(columns: AnswerColumns, part: slice) -> AnswerColumns:
    rows = range(len(columns))[part]
    return AnswerColumns(
        columns.classes[part],
        columns.probabilities[part],
        {row - rows.start: error for row, error in columns.errors.items() if row in rows},
        None if columns.predicted is None else columns.predicted[part],
    )


@given(TABLES)
def test_a_journal_gives_columns_back_unchanged(made: tuple[list[str], AnswerColumns, list[Prediction]]):
    _, columns, _ = made
    top, multilabel = columns.classes.shape[1], columns.predicted is not None
    read = read_answers(json.loads(json.dumps(columns.stored())), LABELS, top, multilabel)
    np.testing.assert_array_equal(read.classes, columns.classes)
    np.testing.assert_array_equal(read.probabilities, columns.probabilities)
    assert (read.errors, read.predicted) == (columns.errors, columns.predicted)


@pytest.mark.parametrize(
    "damage",
    [
        {"images": 3},
        {"images": 0, "classes": "", "probabilities": ""},
        {"classes": "AAAA"},
        {"classes": "ü"},
        {"classes": "/////w=="},  # -1
        {"probabilities": None},
        {"errors": [[1, "row of another block"]]},
        {"errors": [["0", "a text"]]},
        {"predicted": [[0]]},
    ],
)
def test_damaged_columns_are_an_error(damage: dict[str, object]):
    stored = AnswerColumns(np.zeros((1, 1), np.int32), np.ones((1, 1), np.float32)).stored()
    assert len(read_answers(stored, LABELS, 1, False)) == 1
    with pytest.raises(VitkitError):
        read_answers({**stored, **damage}, LABELS, 1, False)


def test_probabilities_that_are_not_finite_are_an_error_of_their_row():
    values = torch.tensor([[0.5, 0.5], [torch.nan, 0.5], [0.5, torch.inf]])
    outputs = tuple(output.numpy() for output in compute_answers(values, 1, False))
    columns = answer_columns(ImageOutputs(0, 3, np.arange(3), outputs, {}), 1, None)
    assert {*columns.errors} == {1, 2}
    assert "not a number" in columns.errors[1]
