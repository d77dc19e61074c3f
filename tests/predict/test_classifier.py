"""`vitkit.Classifier`: pictures in every form → names and probabilities."""

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
from tests.data.images import encode, npy, scene
from tests.predict.coloured import LABELS, colour_model, odd_pictures, real_pictures
from vitkit.data.sources.open import open_data
from vitkit.errors import ConfigError, DecodeError, WeightsError
from vitkit.evaluate.classify import evaluate


@pytest.fixture
def classifier() -> vitkit.Classifier:
    return vitkit.Classifier(colour_model())


def test_a_run_folder_is_all_that_is_needed(tmp_path: Path):
    vitkit.save(colour_model(resize="letterbox"), tmp_path / "run")
    (tmp_path / "a.png").write_bytes(encode(scene(), "PNG"))
    prediction = vitkit.Classifier(tmp_path / "run")(tmp_path / "a.png")
    assert prediction.label in LABELS
    assert prediction.name == str(tmp_path / "a.png")
    assert prediction.probabilities.sum() == pytest.approx(1, abs=1e-6)


def test_every_form_of_a_picture_has_the_same_answer(classifier: vitkit.Classifier, tmp_path: Path):
    content = encode(scene(), "PNG")
    path = tmp_path / "a.png"
    path.write_bytes(content)
    told = classifier(
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
    for prediction in told[1:]:
        np.testing.assert_allclose(prediction.probabilities, told[0].probabilities, atol=2e-6)


@pytest.mark.parametrize("name", odd_pictures())
def test_a_file_and_what_pillow_opens_of_it_have_the_same_answer(classifier: vitkit.Classifier, name: str):
    content = odd_pictures()[name]
    if name.endswith(".npy"):
        pytest.skip("Pillow does not read arrays")
    opened = Image.open(io.BytesIO(content))
    np.testing.assert_allclose(classifier(opened).probabilities, classifier(content).probabilities, atol=1e-6)
    if opened.mode == "RGB":  # a copy that Pillow itself has turned upright
        upright = ImageOps.exif_transpose(opened)
        np.testing.assert_allclose(classifier(upright).probabilities, classifier(content).probabilities, atol=1e-6)


def test_probabilities_are_scipys_softmax_of_the_models_logits(classifier: vitkit.Classifier):
    pixels = scene(32, 32)  # the model's size: all that is left to do is to scale
    with torch.no_grad():
        logits = classifier.model(torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 127.5 - 1)[0].numpy()
    told = classifier(pixels)
    np.testing.assert_allclose(told.probabilities, scipy.special.softmax(logits), atol=1e-6)
    assert [answer.index for answer in told.top(7)] == [*np.argsort(-logits)]
    assert told.top(3)[0].label == told.label == LABELS[logits.argmax()]


def test_a_model_of_several_labels_answers_each_on_its_own():
    model = colour_model()
    model.metadata = replace(model.metadata, provenance={"multilabel": True})
    one, several = vitkit.Classifier(colour_model()), vitkit.Classifier(model)
    odds = scipy.special.logit(several(scene()).probabilities)
    np.testing.assert_allclose(scipy.special.softmax(odds), one(scene()).probabilities, atol=1e-5)


def test_broken_pictures_are_reported_in_their_place_and_hurt_nobody(classifier: vitkit.Classifier, tmp_path: Path):
    jpeg = encode(scene(200, 300), "JPEG")
    told = classifier([jpeg, jpeg[:-500], tmp_path / "missing.jpg", b"", tmp_path, "\0", jpeg])
    assert [prediction.error is None for prediction in told] == [True, False, False, False, False, False, True]
    assert "truncated" in (told[1].error or "")
    assert "No such file" in (told[2].error or "")
    np.testing.assert_array_equal(told[0].probabilities, told[-1].probabilities)
    with pytest.raises(DecodeError, match=r"missing\.jpg: No such file"):
        told[2].label  # noqa: B018
    assert told[1].record(3) == {"picture": None, "error": told[1].error, "answers": []}


def test_an_answer_that_is_no_number_is_none(classifier: vitkit.Classifier):
    with torch.no_grad():
        classifier.model.head.logits.bias[2] = float("nan")
    told = classifier(scene())
    assert "no number" in (told.error or "")
    assert json.loads(json.dumps(told.record(), allow_nan=False))["answers"] == []


@pytest.mark.parametrize("nonsense", [3, None, 2.5, object()])
def test_what_is_no_picture_at_all_is_a_mistake_of_the_caller(classifier: vitkit.Classifier, nonsense):
    for given in (nonsense, [scene(), nonsense]):
        with pytest.raises(ConfigError, match=rf"of the type {type(nonsense).__name__}\n  try  a path, bytes, a file"):
            classifier(given)


def test_an_open_file_is_a_picture(classifier: vitkit.Classifier, tmp_path: Path):
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
        told = [classifier(buffered), *classifier(files)]  # one of them for the second time
        assert [one.name for one in told[:3]] == [str(path)] * 3
        for prediction in told:
            assert prediction.error is None
            np.testing.assert_allclose(prediction.probabilities, truth.probabilities, atol=2e-6)


def test_an_open_file_that_cannot_be_read_is_reported_in_its_place(classifier: vitkit.Classifier, tmp_path: Path):
    (tmp_path / "a.png").write_bytes(encode(scene(), "PNG"))
    closed = (tmp_path / "a.png").open("rb")
    closed.close()
    told = classifier([closed, io.BytesIO(b"no picture"), io.BytesIO(), scene(), "https://example.org/cat.jpg"])
    assert [prediction.error is None for prediction in told] == [False, False, False, True, False]
    assert "closed file" in (told[0].error or "")
    assert told[4].error == "URLs are not read; download it first"


def test_a_file_opened_as_text_is_a_mistake_of_the_caller(classifier: vitkit.Classifier, tmp_path: Path):
    (tmp_path / "a.png").write_bytes(encode(scene(), "PNG"))
    with (
        (tmp_path / "a.png").open(encoding="utf-8") as undecodable,
        (tmp_path / "a.png").open(encoding="latin-1") as letters,
    ):
        for file in (undecodable, letters, io.StringIO("a.png\nb.png")):
            for given in (file, [file]):
                with pytest.raises(ConfigError, match=rf'{type(file).__name__}: it gives str, not bytes(.|\n)*"rb"'):
                    classifier(given)  # type: ignore[arg-type]


def test_more_pictures_than_a_batch_stay_in_order(classifier: vitkit.Classifier):
    pictures = [np.roll(scene(), place, axis=1) for place in range(40)]
    alone = [classifier(picture).probabilities for picture in pictures]
    classifier.engine = replace(classifier.engine, batch=7)
    for prediction, expected in zip(classifier(iter(pictures)), alone, strict=True):
        np.testing.assert_allclose(prediction.probabilities, expected, atol=1e-6)


def test_answers_are_those_that_evaluate_scores(tmp_path: Path):
    model = colour_model(resize="squash", interpolation="bilinear")
    for index, path in enumerate(real_pictures(tmp_path, 40)):
        (tmp_path / "test" / LABELS[index % 7]).mkdir(parents=True, exist_ok=True)
        path.rename(tmp_path / "test" / LABELS[index % 7] / path.name)
    data = open_data(str(tmp_path))
    scored = evaluate(model, data)
    pictures = sorted((tmp_path / "test").rglob("*.*"))
    told = vitkit.Classifier(model)(pictures)
    right = np.mean([prediction.label == path.parent.name for prediction, path in zip(told, pictures, strict=True)])
    assert scored.top1 is not None
    assert scored.top1.value == pytest.approx(right)


def test_weights_without_names_answer_with_numbers_or_with_the_names_given():
    model = colour_model()
    model.metadata = replace(model.metadata, labels=None)
    assert vitkit.Classifier(model)(scene()).label in set("0123456")
    named = vitkit.Classifier(model, labels=LABELS)(scene())
    assert named.label == LABELS[named.top(1)[0].index]
    with pytest.raises(ConfigError, match="2 class names for a model of 7 classes"):
        vitkit.Classifier(model, labels=["a", "b"])


def test_a_model_without_classes_says_what_to_do(tmp_path: Path):
    vitkit.save(vitkit.create("mu/4", classes=0, image=32), tmp_path / "pre")
    with pytest.raises(WeightsError, match="has no classes to answer with"):
        vitkit.Classifier(tmp_path / "pre")


def test_the_frame_is_what_the_model_sees(classifier: vitkit.Classifier):
    np.testing.assert_allclose(classifier.frame(scene(32, 32)).permute(1, 2, 0), scene(32, 32))
    np.testing.assert_allclose(classifier.frame(npy(scene())) / 127.5 - 1, classifier.see(npy(scene())), atol=1e-6)


def test_embeddings_are_the_models_representation(classifier: vitkit.Classifier):
    images = torch.stack([classifier.see(scene()), classifier.see(scene(9, 50))])
    with torch.no_grad():
        logits, seen = classifier.model(images, capture=("representation",))
    np.testing.assert_array_equal(classifier.embed(images), seen["representation"])
    head = classifier.model.head.logits
    again = classifier.embed(images) @ head.weight.detach().numpy().T + head.bias.detach().numpy()
    np.testing.assert_allclose(again, logits, atol=1e-4)


def test_a_model_that_is_asked_stays_as_it_was_and_learns_on():
    model = colour_model().train()
    labels = model.metadata.labels
    classifier = vitkit.Classifier(model, labels=[f"class {number}" for number in range(model.config.classes)])
    before = classifier(scene()).probabilities
    assert model.training
    assert model.metadata.labels == labels
    with torch.no_grad():
        model.head.logits.bias.add_(torch.arange(model.config.classes) * 9.0)
    assert not np.allclose(classifier(scene()).probabilities, before)  # the weights are the same ones
