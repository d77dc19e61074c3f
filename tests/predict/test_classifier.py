"""`vitkit.Classifier` predicts labels and probabilities for images in every form."""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import torch
from PIL import Image, ImageOps

import vitkit
from tests.data.sample_images import encode, scene
from tests.predict.small_model import LABELS, odd_images, real_images, rounding, small_model
from vitkit.data.sources.open import open_data
from vitkit.errors import ConfigError, DecodeError, WeightsError
from vitkit.evaluate.classify import evaluate


@pytest.fixture
def classifier() -> vitkit.Classifier:
    return vitkit.Classifier(small_model())


def test_a_run_folder_is_all_that_is_needed(tmp_path: Path):
    vitkit.save(small_model(resize="letterbox"), tmp_path / "run")
    (tmp_path / "a.png").write_bytes(encode(scene(), "PNG"))
    prediction = vitkit.Classifier(tmp_path / "run")(tmp_path / "a.png")
    assert prediction.label in LABELS
    assert prediction.name == str(tmp_path / "a.png")
    assert prediction.probabilities.sum() == pytest.approx(1, abs=1e-6)


def test_every_form_of_an_image_has_the_same_prediction(classifier: vitkit.Classifier, tmp_path: Path):
    content = encode(scene(), "PNG")
    path = tmp_path / "a.png"
    path.write_bytes(content)
    predictions = classifier(
        [
            path,
            str(path),
            content,
            bytearray(content),
            memoryview(content),
            Image.open(path),
            Image.fromarray(scene()),
            scene(),
            scene().astype(np.uint16) * 257,
            scene() / 255,
        ]
    )
    for prediction in predictions[1:]:
        np.testing.assert_allclose(
            prediction.probabilities, predictions[0].probabilities, atol=rounding(classifier.model)
        )


@pytest.mark.parametrize("name", odd_images())
def test_a_file_and_its_pillow_image_have_the_same_prediction(classifier: vitkit.Classifier, name: str):
    content = odd_images()[name]
    if name.endswith(".npy"):
        pytest.skip("Pillow does not read arrays")
    opened = Image.open(io.BytesIO(content))
    np.testing.assert_allclose(
        classifier(opened).probabilities, classifier(content).probabilities, atol=rounding(classifier.model)
    )
    if opened.mode == "RGB":  # a copy that Pillow itself has turned upright
        upright = ImageOps.exif_transpose(opened)
        np.testing.assert_allclose(
            classifier(upright).probabilities, classifier(content).probabilities, atol=rounding(classifier.model)
        )


def test_probabilities_are_scipys_softmax_of_the_models_logits(classifier: vitkit.Classifier):
    pixels = scene(32, 32)  # the model's size: all that is left to do is to scale
    with torch.no_grad():
        logits = classifier.model(torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 127.5 - 1)[0].numpy()
    prediction = classifier(pixels)
    np.testing.assert_allclose(prediction.probabilities, scipy.special.softmax(logits), atol=rounding(classifier.model))
    assert [answer.index for answer in prediction.top(7)] == [*np.argsort(-logits)]
    assert prediction.top(3)[0].label == prediction.label == LABELS[logits.argmax()]


def test_a_multilabel_model_predicts_each_label_on_its_own():
    model = small_model()
    model.metadata = replace(model.metadata, provenance={"multilabel": True})
    one, several = vitkit.Classifier(small_model()), vitkit.Classifier(model)
    odds = scipy.special.logit(several(scene()).probabilities)
    np.testing.assert_allclose(scipy.special.softmax(odds), one(scene()).probabilities, atol=1e-5)


def test_broken_images_are_reported_in_order_and_do_not_affect_others(classifier: vitkit.Classifier, tmp_path: Path):
    jpeg = encode(scene(200, 300), "JPEG")
    predictions = classifier([jpeg, jpeg[:-500], tmp_path / "missing.jpg", b"", tmp_path, "\0", jpeg])
    assert [prediction.error is None for prediction in predictions] == [True, False, False, False, False, False, True]
    assert "truncated" in (predictions[1].error or "")
    assert "No such file" in (predictions[2].error or "")
    first, last = predictions[0].probabilities, predictions[-1].probabilities
    np.testing.assert_allclose(first, last, atol=rounding(classifier.model))
    with pytest.raises(DecodeError, match=r"missing\.jpg: No such file"):
        predictions[2].label  # noqa: B018
    assert predictions[1].record(3) == {
        "image": None,
        "error": predictions[1].error,
        "label": None,
        "probability": None,
        "answers": [],
    }


def test_an_output_that_is_not_a_number_is_an_error(classifier: vitkit.Classifier):
    with torch.no_grad():
        classifier.model.head.logits.bias[2] = float("nan")
    prediction = classifier(scene())
    assert "not a number" in (prediction.error or "")
    assert json.loads(json.dumps(prediction.record(), allow_nan=False))["answers"] == []


@pytest.mark.parametrize("nonsense", [3, None, 2.5, object()])
def test_an_argument_that_is_no_image_raises_a_config_error(classifier: vitkit.Classifier, nonsense):
    for argument in (nonsense, [scene(), nonsense]):
        with pytest.raises(ConfigError, match=rf"of the type {type(nonsense).__name__}\n  try  a path, bytes, a file"):
            classifier(argument)


def test_an_open_file_is_an_image(classifier: vitkit.Classifier, tmp_path: Path):
    path, written = tmp_path / "a.png", io.BytesIO()
    path.write_bytes(encode(scene(), "PNG"))
    Image.fromarray(scene()).save(written, "PNG")  # and is at its end now
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(path, "a.png")
    truth = classifier(path)
    with (
        path.open("rb") as buffered,
        path.open("rb", buffering=0) as raw,
        os.popen(f"cat {path}") as piped,
        zipfile.ZipFile(tmp_path / "a.zip") as zipped,
        zipped.open("a.png") as packed,
        tempfile.NamedTemporaryFile() as temporary,
    ):
        temporary.write(path.read_bytes())
        files = [buffered, raw, packed, piped.buffer, temporary, written]
        predictions = [classifier(buffered), *classifier(files)]  # one of them for the second time
        assert [one.name for one in predictions[:3]] == [str(path)] * 3
        for prediction in predictions:
            assert prediction.error is None
            np.testing.assert_allclose(prediction.probabilities, truth.probabilities, atol=rounding(classifier.model))


def test_an_open_file_that_cannot_be_read_is_reported_in_order(classifier: vitkit.Classifier, tmp_path: Path):
    (tmp_path / "a.png").write_bytes(encode(scene(), "PNG"))
    closed = (tmp_path / "a.png").open("rb")
    closed.close()
    predictions = classifier([closed, io.BytesIO(b"no image"), io.BytesIO(), scene(), "memory://cat.jpg"])
    assert [prediction.error is None for prediction in predictions] == [False, False, False, True, False]
    assert "closed file" in (predictions[0].error or "")
    assert predictions[4].error == "there is no such object"


def test_a_file_opened_as_text_raises_a_config_error(classifier: vitkit.Classifier, tmp_path: Path):
    (tmp_path / "a.png").write_bytes(encode(scene(), "PNG"))
    with (
        (tmp_path / "a.png").open(encoding="utf-8") as undecodable,
        (tmp_path / "a.png").open(encoding="latin-1") as letters,
    ):
        for file in (undecodable, letters, io.StringIO("a.png\nb.png")):
            for argument in (file, [file]):
                with pytest.raises(ConfigError, match=rf'{type(file).__name__}: it gives str, not bytes(.|\n)*"rb"'):
                    classifier(argument)  # type: ignore[arg-type]


def test_more_images_than_a_batch_stay_in_order(classifier: vitkit.Classifier):
    images = [np.roll(scene(), shift, axis=1) for shift in range(40)]
    alone = [classifier(image).probabilities for image in images]
    classifier.engine = replace(classifier.engine, batch=7)
    for prediction, expected in zip(classifier(iter(images)), alone, strict=True):
        np.testing.assert_allclose(prediction.probabilities, expected, atol=rounding(classifier.model))


def test_predictions_are_those_that_evaluate_scores(tmp_path: Path):
    model = small_model(resize="squash", interpolation="bilinear")
    for index, path in enumerate(real_images(tmp_path, 40)):
        (tmp_path / "test" / LABELS[index % 7]).mkdir(parents=True, exist_ok=True)
        path.rename(tmp_path / "test" / LABELS[index % 7] / path.name)
    data = open_data(str(tmp_path))
    scored = evaluate(model, data)
    images = sorted((tmp_path / "test").rglob("*.*"))
    predictions = vitkit.Classifier(model)(images)
    right = np.mean(
        [prediction.label == path.parent.name for prediction, path in zip(predictions, images, strict=True)]
    )
    assert scored.top1 is not None
    assert scored.top1.value == pytest.approx(right)


def test_weights_without_class_names_predict_indices_or_the_labels_passed():
    model = small_model()
    model.metadata = replace(model.metadata, labels=None)
    assert vitkit.Classifier(model)(scene()).label in set("0123456")
    named = vitkit.Classifier(model, labels=LABELS)(scene())
    assert named.label == LABELS[named.top(1)[0].index]
    with pytest.raises(ConfigError, match="2 class names for a model of 7 classes"):
        vitkit.Classifier(model, labels=["a", "b"])


def test_a_model_without_classes_says_what_to_do(tmp_path: Path):
    vitkit.save(vitkit.create("mu/4", classes=0, image=32), tmp_path / "pre")
    with pytest.raises(WeightsError, match="has no classes to predict"):
        vitkit.Classifier(tmp_path / "pre")


def test_embeddings_are_the_models_representation(classifier: vitkit.Classifier):
    images = torch.stack([classifier.preprocess(scene()), classifier.preprocess(scene(9, 50))])
    with torch.no_grad():
        logits, seen = classifier.model(images, capture=("representation",))
    np.testing.assert_allclose(
        classifier.embed(images),
        seen["representation"],
        atol=rounding(classifier.model),
        rtol=rounding(classifier.model),
    )
    head = classifier.model.head.logits
    logits_from_head = classifier.embed(images) @ head.weight.detach().numpy().T + head.bias.detach().numpy()
    np.testing.assert_allclose(logits_from_head, logits, atol=1e-4)


def test_a_model_in_a_classifier_keeps_its_mode_and_shares_its_weights():
    model = small_model().train()
    labels = model.metadata.labels
    classifier = vitkit.Classifier(model, labels=[f"class {number}" for number in range(model.config.classes)])
    before = classifier(scene()).probabilities
    assert model.training
    assert model.metadata.labels == labels
    with torch.no_grad():
        model.head.logits.bias.add_(torch.arange(model.config.classes) * 9.0)
    assert not np.allclose(classifier(scene()).probabilities, before)  # the weights are the same ones
