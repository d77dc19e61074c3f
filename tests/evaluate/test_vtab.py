"""VTAB's protocol of 1,000 examples: which images are fitted, chosen by and scored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from tests.evaluate.small_model import small_model
from vitkit.compute.features import FeatureExtractor, Features
from vitkit.data.sources.dataset import Data, DataError, Split
from vitkit.data.sources.open import open_data
from vitkit.data.subset import draw_images
from vitkit.errors import ConfigError
from vitkit.evaluate import linear
from vitkit.evaluate.vtab import vtab


def raw(split: Split) -> Features:
    """Return a few pixels of each image as its features."""
    values = np.stack([split.read(index)[2::6, 2::6].ravel() for index in range(len(split))]).astype(np.float32)
    return Features(values, split.labels, split.keys)


def small(data: Data, train: int) -> Data:
    """Return data with that many training images of all classes, and only a few to score."""
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
    result = vtab(raw, [data])
    (task,) = result.tasks
    assert (task.data, task.classes, task.fitted, task.images) == ("fashion", 10, 1000, 250)
    train, test = raw(draw_images(data.splits["train"], 1000)), raw(data.splits["test"])
    scale = StandardScaler().fit(train.values.astype(float))
    theirs = LogisticRegression(C=1 / (1000 * task.l2), max_iter=5000, tol=1e-8)
    theirs.fit(scale.transform(train.values.astype(float)), train.labels)
    assert task.top1.value == pytest.approx(
        theirs.score(scale.transform(test.values.astype(float)), test.labels), abs=0.005
    )
    assert result.mean == task.top1.value > 0.6


def test_settings_are_chosen_on_200_after_fitting_800_and_no_test_image_is_used(monkeypatch: pytest.MonkeyPatch):
    fitted: list[tuple[set[str], set[str]]] = []
    real = linear.fit_linear_probe

    def recording(fit: Features, dev: Features):
        fitted.append((set(fit.keys), set(dev.keys)))
        return real(fit, dev)

    monkeypatch.setattr(linear, "fit_linear_probe", recording)
    data = small(open_data("fashion"), 1500)
    vtab(raw, [data])
    ((fit, dev),) = fitted
    assert (len(fit), len(dev)) == (800, 200)
    assert not fit & dev
    assert fit | dev == set(draw_images(data.splits["train"], 1000).keys) <= set(data.splits["train"].keys)


def test_every_task_has_the_same_weight_and_few_images_are_all_used(tmp_path: Path):
    extract = FeatureExtractor(model=small_model(), cache_folder=tmp_path)
    tasks = [small(open_data("fashion"), count) for count in (1100, 60)]
    result = vtab(extract, tasks)
    assert [task.fitted for task in result.tasks] == [1000, 60]
    assert result.mean == pytest.approx(sum(task.top1.value for task in result.tasks) / 2)
    assert result.tasks[0].top1.value > result.tasks[1].top1.value
    assert json.loads(result.to_json())["tasks"][1]["fitted"] == 60


def test_draws_depend_on_the_seed_alone():
    split = open_data("fashion").splits["train"]
    assert list(draw_images(split, 1000, 1).keys) == list(draw_images(split, 1000, 1).keys)
    assert set(draw_images(split, 1000, 1).keys) != set(draw_images(split, 1000, 2).keys)
    assert len(set(draw_images(split, 1000).keys)) == 1000


def test_no_dataset_and_multilabel_data_are_errors():
    with pytest.raises(ConfigError, match="at least one dataset"):
        vtab(raw, [])
    with pytest.raises(DataError, match="several labels"):
        vtab(raw, [replace(open_data("fashion"), multilabel=True)])
