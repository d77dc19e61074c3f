"""A model is opened for what it was trained for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import vitkit
from tests.data.sample_images import scene
from tests.predict.small_model import small_model
from tests.predict.small_segmenter import small_segmenter
from vitkit.errors import ConfigError, WeightsError
from vitkit.predict.classifier import Classifier
from vitkit.predict.open_predictor import open_predictor
from vitkit.predict.segmentation import ImageSegmenter


def test_a_classifier_and_a_segmenter_answer_as_themselves(tmp_path: Path):
    vitkit.save(small_model(), tmp_path / "classes")
    vitkit.save(small_segmenter(), tmp_path / "masks")
    classifier = open_predictor(str(tmp_path / "classes"), device="cpu")
    segmenter = open_predictor(str(tmp_path / "masks"), device="cpu")
    assert isinstance(classifier, Classifier)
    assert isinstance(segmenter, ImageSegmenter)
    assert classifier(scene()).label == Classifier(tmp_path / "classes")(scene()).label
    assert np.array_equal(segmenter(scene()).mask, ImageSegmenter(tmp_path / "masks")(scene()).mask)


def test_what_a_model_cannot_do_is_named_with_the_model(tmp_path: Path):
    vitkit.save(small_segmenter(), tmp_path / "masks")
    vitkit.save(vitkit.create("mu/8", image=32, classes=0), tmp_path / "headless")
    with pytest.raises(ConfigError, match=r"--fast is for models that classify images; .*masks gives masks"):
        open_predictor(str(tmp_path / "masks"), device="cpu", fast=True)
    with pytest.raises(WeightsError, match="headless has no classes to predict"):
        open_predictor(str(tmp_path / "headless"), device="cpu")
