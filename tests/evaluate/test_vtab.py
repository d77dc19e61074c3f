"""The 1,000-example protocol: who is learnt from, who is chosen by, who is scored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from tests.evaluate.small import small_model
from vitkit.data.sources.base import Data, DataError, Split
from vitkit.data.sources.open import open_data
from vitkit.errors import ConfigError
from vitkit.evaluate import linear
from vitkit.evaluate.features import Extractor, Features
from vitkit.evaluate.vtab import draw, vtab


def raw(split: Split) -> Features:
    """A few pixels of each picture: a representation that costs nothing."""
    values = np.stack([split.read(index)[2::6, 2::6].ravel() for index in range(len(split))]).astype(np.float32)
    return Features(values, split.labels, split.keys)


def small(data: Data, train: int) -> Data:
    """So many training pictures of all classes, and only a few to score."""
    chosen = np.linspace(0, len(data.splits["train"]) - 1, train).astype(int)
    return replace(
        data,
        splits={
            "train": data.splits["train"].select(chosen),
            "test": data.splits["test"].select(np.arange(0, 1000, 4)),
        },
    )


def test_a_task_is_fitted_on_1000_and_equals_scikit_learn():
    data = small(open_data("fashion"), 3000)
    found = vtab(raw, [data])
    (task,) = found.tasks
    assert (task.data, task.classes, task.fitted, task.pictures) == ("fashion", 10, 1000, 250)
    learnt, test = raw(draw(data.splits["train"])), raw(data.splits["test"])
    scale = StandardScaler().fit(learnt.values.astype(float))
    theirs = LogisticRegression(C=1 / (1000 * task.l2), max_iter=5000, tol=1e-8)
    theirs.fit(scale.transform(learnt.values.astype(float)), learnt.labels)
    assert task.top1.value == pytest.approx(
        theirs.score(scale.transform(test.values.astype(float)), test.labels), abs=0.005
    )
    assert found.mean == task.top1.value > 0.6


def test_settings_are_chosen_on_200_after_fitting_800_and_no_test_picture_is_seen(monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[set[str], set[str]]] = []
    real = linear.learn

    def noting(fit: Features, dev: Features):
        seen.append((set(fit.keys), set(dev.keys)))
        return real(fit, dev)

    monkeypatch.setattr(linear, "learn", noting)
    data = small(open_data("fashion"), 1500)
    vtab(raw, [data])
    ((fit, dev),) = seen
    assert (len(fit), len(dev)) == (800, 200)
    assert not fit & dev
    assert fit | dev == set(draw(data.splits["train"]).keys) <= set(data.splits["train"].keys)


def test_every_task_counts_the_same_and_few_pictures_are_all_used(tmp_path: Path):
    extract = Extractor(model=small_model(), place=tmp_path)
    tasks = [small(open_data("fashion"), count) for count in (1100, 60)]
    found = vtab(extract, tasks)
    assert [task.fitted for task in found.tasks] == [1000, 60]
    assert found.mean == pytest.approx(sum(task.top1.value for task in found.tasks) / 2)
    assert found.tasks[0].top1.value > found.tasks[1].top1.value
    assert json.loads(found.to_json())["tasks"][1]["fitted"] == 60


def test_draws_depend_on_the_seed_alone():
    split = open_data("fashion").splits["train"]
    assert list(draw(split, 1).keys) == list(draw(split, 1).keys)
    assert set(draw(split, 1).keys) != set(draw(split, 2).keys)
    assert len(set(draw(split).keys)) == 1000


def test_nothing_and_several_labels_are_mistakes():
    with pytest.raises(ConfigError, match="no dataset"):
        vtab(raw, [])
    with pytest.raises(DataError, match="several labels"):
        vtab(raw, [replace(open_data("fashion"), multilabel=True)])
