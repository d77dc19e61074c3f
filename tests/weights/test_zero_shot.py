"""Zero-shot classification: with transformers' text embeddings as head, its own logits; broken files are refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPConfig, CLIPModel, SiglipConfig, SiglipModel

import vitkit
from tests.model.kinds import images_for, make, randomise
from tests.weights.test_clip import TEXT, VISION
from vitkit.cli.main import main
from vitkit.errors import ConfigError, WeightsError
from vitkit.train.head import FittedHead
from vitkit.weights.text_embeddings import read_text_embeddings

LABELS = ["cat", "dog", "große Katze"]


def clip() -> CLIPModel:
    return CLIPModel(CLIPConfig(vision_config=VISION, text_config=TEXT, projection_dim=20))


def siglip() -> SiglipModel:
    return SiglipModel(SiglipConfig(vision_config=VISION, text_config=TEXT | {"projection_size": 32}))


@torch.no_grad()
def write_text(folder: Path, theirs: Any, **others: Any) -> tuple[Path, torch.Tensor]:
    """Write transformers' own text embeddings of three token sequences, and return the sequences too."""
    tokens = torch.tensor([[0, 5, 6, 1], [0, 7, 8, 1], [0, 9, 3, 1]])
    vectors = theirs.get_text_features(input_ids=tokens)
    vectors = vectors if isinstance(vectors, torch.Tensor) else vectors.pooler_output
    np.savez(folder / "text.npz", names=LABELS, vectors=vectors.numpy(), **others)
    return folder / "text.npz", tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP of transformers, its text embeddings, the zero-shot classifier, and images of two classes."""
    folder = tmp_path_factory.mktemp("zero-shot")
    torch.manual_seed(0)
    theirs = randomise(clip().eval())
    theirs.save_pretrained(folder / "clip")
    path, _ = write_text(folder, theirs)
    main(["convert", str(folder / "clip"), str(folder / "run"), "--to", "vitkit", "--text-embeddings", str(path)])
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in ("cat", "dog"):
            (folder / "data" / split / label).mkdir(parents=True)
            for index in range(4):
                pixels = rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / "data" / split / label / f"{index}.png")
    return folder


@pytest.mark.parametrize("make_theirs", [clip, siglip])
def test_logits_are_transformers_own(make_theirs: Any, tmp_path: Path):
    torch.manual_seed(1)
    theirs = randomise(make_theirs().eval())
    theirs.save_pretrained(tmp_path / "theirs")
    path, tokens = write_text(tmp_path, theirs)
    ours = vitkit.load(tmp_path / "theirs", text_embeddings=path)
    images = images_for(ours, batch=4)
    with torch.no_grad():
        expected = theirs(input_ids=tokens, pixel_values=images).logits_per_image
        assert expected.std() > 0.1
        torch.testing.assert_close(ours(images), expected, atol=1e-5, rtol=1e-5)
        vitkit.save(ours, tmp_path / "run")
        assert torch.equal(vitkit.load(tmp_path / "run")(images), ours(images))
    assert ours.metadata.labels == tuple(LABELS)
    assert not ours.metadata.multilabel
    if make_theirs is siglip:
        assert torch.equal(ours.head.logits.bias, theirs.logit_bias.expand(3))


def test_siglips_sigmoids_on_request(tmp_path: Path):
    theirs = randomise(siglip().eval())
    theirs.save_pretrained(tmp_path / "theirs")
    path, tokens = write_text(tmp_path, theirs, multilabel=True)
    classifier = vitkit.Classifier(vitkit.load(tmp_path / "theirs", text_embeddings=path))
    assert classifier.multilabel
    image = torch.zeros(1, 3, 32, 32)  # the middle grey of SigLIP's normalisation
    (prediction,) = classifier([np.full((32, 32, 3), 127.5).astype(np.uint8)])
    with torch.no_grad():
        expected = theirs(input_ids=tokens, pixel_values=image - 1 / 255).logits_per_image.sigmoid()[0]
    by_name = {item.label: item.probability for item in prediction.top(3)}
    assert by_name == pytest.approx(dict(zip(LABELS, expected.tolist(), strict=True)), abs=1e-3)


def test_a_tower_without_scale_takes_the_files(tmp_path: Path):
    vitkit.save(no_head(), tmp_path / "tower")
    vectors = np.random.default_rng(0).normal(size=(3, 24))
    np.savez(tmp_path / "text.npz", names=LABELS, vectors=vectors)
    with pytest.raises(WeightsError, match=r"neither .* holds logit_scale"):
        vitkit.load(tmp_path / "tower", text_embeddings=tmp_path / "text.npz")
    np.savez(tmp_path / "text.npz", names=LABELS, vectors=vectors, logit_scale=math.log(100), logit_bias=-3.0)
    model = vitkit.load(tmp_path / "tower", text_embeddings=tmp_path / "text.npz")
    images = images_for(model)
    features = no_head(vitkit.load(tmp_path / "tower"))(images).detach().double().numpy()
    cosines = features @ vectors.T / np.linalg.norm(features, axis=1)[:, None] / np.linalg.norm(vectors, axis=1)
    # 100 · cosine of two float32 vectors of 24 numbers
    np.testing.assert_allclose(model(images).detach().numpy(), 100 * cosines - 3, atol=100 * 24 * 2**-23)
    vitkit.save(model, tmp_path / "run")
    np.savez(tmp_path / "other.npz", names=["one"], vectors=vectors[:1], logit_scale=1.0)
    with pytest.raises(WeightsError, match="leave logit_scale out"):
        vitkit.load(tmp_path / "run", text_embeddings=tmp_path / "other.npz")
    np.savez(tmp_path / "other.npz", names=["one"], vectors=vectors[:1])
    replaced = vitkit.load(tmp_path / "run", text_embeddings=tmp_path / "other.npz")
    torch.testing.assert_close(replaced(images), model(images)[:, :1])


def no_head(model: Any = None) -> Any:
    model = make("like CLIP") if model is None else model
    model.replace_head(0)
    return model


GOOD = {"names": np.array(["a", "b"]), "vectors": np.ones((2, 20), np.float32)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vectors": np.ones((2, 21))}, "vectors of 21 numbers, but images of .* have 20"),
        ({"vectors": np.array([[np.nan] * 20, [1.0] * 20])}, "vectors in 1 row that are not finite"),
        ({"vectors": np.array([[np.inf] * 20, [1.0] * 20])}, "not finite"),
        ({"vectors": np.zeros((2, 20))}, "without a direction"),
        ({"vectors": np.ones(20)}, r"in the shape \(20,\)"),
        ({"vectors": np.ones((2, 20), np.int64)}, "of int64"),
        ({"vectors": np.ones((0, 20)), "names": np.array([], "U1")}, r"in the shape \(0, 20\)"),
        ({"names": np.array(["a", "a"])}, "more than once"),
        ({"names": np.array(["a", "b", "c"])}, "3 names for 2 vectors"),
        ({"names": np.array(["a", " "])}, "empty"),
        ({"names": np.array([1, 2])}, "a list of texts"),
        ({"names": np.array([b"a", b"\xff"])}, "not UTF-8"),
        ({"names": np.array(["a", "b"], object)}, "pickled objects are never loaded"),
        ({"logit_scale": np.array([1.0, 2.0])}, "not one finite number"),
        ({"logit_scale": np.array(np.nan)}, "not one finite number"),
        ({"multilabel": np.array("yes")}, "not True or False"),
        ({"labels": np.array(["a"])}, "have no meaning here"),
        ({"vectors": None}, "lacks the array 'vectors'"),
        ({"names": None}, "lacks the array 'names'"),
    ],
)
def test_a_broken_file_is_one_error(changes: dict, message: str, tmp_path: Path, folder: Path):
    arrays = {name: array for name, array in (GOOD | changes).items() if array is not None}
    np.savez(tmp_path / "text.npz", **arrays)
    with pytest.raises(WeightsError, match=message):
        vitkit.load(folder / "clip", text_embeddings=tmp_path / "text.npz")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not an archive", b'{"names": []}', None])
def test_a_file_that_is_no_npz_is_one_error(content: bytes | None, tmp_path: Path):
    if content is not None:
        (tmp_path / "text.npz").write_bytes(content)
    with pytest.raises(WeightsError, match=r"text\.npz"):
        read_text_embeddings(tmp_path / "text.npz")


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path):
    np.savez_compressed(tmp_path / "text.npz", names=["a"] * 9000, vectors=np.zeros((9000, 4096), np.float32))
    with pytest.raises(WeightsError, match="decompress"):
        read_text_embeddings(tmp_path / "text.npz")


def test_a_classifier_and_a_number_of_classes_do_not_take_a_head_of_texts(tmp_path: Path, folder: Path):
    np.savez(tmp_path / "text.npz", **GOOD)
    vitkit.save(make("token"), tmp_path / "model")
    with pytest.raises(WeightsError, match="a classifier of 10 classes"):
        vitkit.load(tmp_path / "model", text_embeddings=tmp_path / "text.npz")
    with pytest.raises(ConfigError, match="classes= would replace it again"):
        vitkit.load(folder / "clip", text_embeddings=tmp_path / "text.npz", classes=2)


@pytest.mark.parametrize("format", ["google", "timm", "hf"])
def test_other_formats_cannot_hold_the_head(format: str, tmp_path: Path, folder: Path):
    with pytest.raises(WeightsError, match="nothing was written"):
        vitkit.save(vitkit.load(folder / "run"), tmp_path / "out.npz", format=format)


# Everything else works on the folder that convert wrote


def test_predict_serve_and_evaluate_name_the_classes_of_the_file(folder: Path, capsys: pytest.CaptureFixture[str]):
    image = folder / "data/test/cat/0.png"
    classifier = vitkit.Classifier(folder / "run")  # as `vitkit serve` makes it
    (answer,) = classifier([image])
    assert answer.labels == tuple(LABELS)
    tower = no_head(vitkit.load(folder / "run"))
    features = torch.nn.functional.normalize(tower(classifier.preprocess(image)[None]))
    logits = features @ vitkit.load(folder / "run").head.logits.weight.T
    torch.testing.assert_close(torch.from_numpy(answer.probabilities), logits.softmax(1)[0], atol=1e-5, rtol=1e-5)
    main(["predict", str(folder / "run"), str(image), "--json"])
    assert answer.label in capsys.readouterr().out
    evaluation = vitkit.Run(folder / "run").evaluate(folder / "data")
    assert evaluation.images == 8
    assert evaluation.top1 is not None
    assert evaluation.missing == ("große Katze",)


def test_probe_sees_the_representation_and_inspect_explains_classes(folder: Path, tmp_path: Path):
    run = vitkit.Run(folder / "run")
    assert run.probe(folder / "data", method="knn") is not None
    run.inspect([folder / "data/test/cat/0.png"], tmp_path / "inspect")
    assert any((tmp_path / "inspect").iterdir())


def test_a_fitted_head_replaces_the_cosines_and_keeps_the_names(folder: Path):
    model = vitkit.load(folder / "run")
    fitted = FittedHead(
        weight=torch.randn(3, 20),
        bias=torch.randn(3),
        images=1,
        l2=1.0,
        accuracy=None,
        loss=None,
        class_weights=None,
        failures={},
    )
    fitted.apply_to(model)
    assert not model.config.normalise
    assert model.metadata.labels == tuple(LABELS)
    images = images_for(model)
    features = no_head(vitkit.load(folder / "run"))(images)
    torch.testing.assert_close(model(images), features @ fitted.weight.T + fitted.bias, atol=1e-5, rtol=1e-5)


def test_an_onnx_file_agrees(folder: Path, tmp_path: Path):
    pytest.importorskip("onnxruntime")
    export = vitkit.Run(folder / "run").export(tmp_path / "model.onnx")
    assert export.path.stat().st_size > 1000
    assert export.comparison.equal
