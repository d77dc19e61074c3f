"""`ti16`, the weights inside the package: the float32 file rounded to 16 bits, with names, found without a network."""

from __future__ import annotations

import json
import logging
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

import vitkit
from tests.weights.make_ti16 import FIXTURE, fashion_inputs
from tests.weights.rounding import ROUNDING
from vitkit.config.resolve import resolve_weights
from vitkit.config.schema import Fit
from vitkit.errors import WeightsError
from vitkit.model.variants import name_of
from vitkit.run_folder import RunFolder
from vitkit.weights.bundled import BUNDLED, local_path

HALF = 2.0**-11  # the largest relative error of a number that is rounded to float16
BREEDS = {  # of Oxford-IIIT Pet, and the same in ImageNet
    "Siamese": "Siamese cat",
    "Egyptian_Mau": "Egyptian cat",
    "boxer": "boxer",
    "german_shorthaired": "German short-haired pointer",
    "newfoundland": "Newfoundland",
    "pug": "pug",
    "samoyed": "Samoyed",
    "scottish_terrier": "Scotch terrier",
}


def test_it_is_a_ti16_in_float32_with_names_preprocessing_and_licence():
    model = vitkit.load("ti16")
    assert name_of(model.config) == "Ti/16"
    assert (model.config.classes, model.config.gelu, model.dtype) == (1000, "exact", torch.float32)
    assert sum(parameter.numel() for parameter in model.parameters()) == 5_717_416
    assert model.metadata.preprocessing.crop == 0.9
    assert model.metadata.provenance["license"] == "Apache-2.0"
    assert "Apache License" in (BUNDLED["ti16"] / "LICENSE").read_text()
    assert "2106.10270" in (BUNDLED["ti16"] / "README.md").read_text()


def test_the_names_are_those_of_imagenets_1000_classes_in_order():
    names = vitkit.load("ti16").metadata.labels
    known = {0: "tench", 1: "goldfish", 151: "Chihuahua", 207: "golden retriever", 281: "tabby", 388: "giant panda"}
    known |= {134: "crane (bird)", 517: "crane (machine)", 264: "Cardigan Welsh corgi", 474: "cardigan"}
    known |= {638: "maillot (tights)", 639: "maillot (tank suit)", 954: "banana", 999: "toilet tissue"}
    assert {index: names[index] for index in known} == known
    assert len({name.casefold() for name in names}) == 1000


def test_every_weight_is_that_of_the_float32_file_rounded_to_16_bits(shared: Path):
    theirs = vitkit.load(shared / "weights" / "vit_ti16_in1k_timm.safetensors").state_dict()
    for name, weight in vitkit.load("ti16").state_dict().items():
        assert torch.equal(weight, theirs[name].half().float()), name


def test_logits_differ_from_those_of_float32_weights_by_16_bit_rounding():
    """A weight w is off by at most 2^-11 · w, and a logit, to first order, by the sum of these times its gradient.

    The roundings are independent: their sum has a standard deviation below 2^-11 · |gradient · w| / √3.
    """
    model = vitkit.load("ti16")
    with np.load(FIXTURE) as arrays:
        expected = torch.from_numpy(arrays["logits"])
    logits = model(fashion_inputs())
    for image in range(len(expected)):
        label = expected[image].argmax()
        gradients = torch.autograd.grad(logits[image, label], list(model.parameters()), retain_graph=True)
        products = torch.cat([(g * w).flatten() for g, w in zip(gradients, model.parameters(), strict=True)])
        deviation = float(HALF * products.detach().norm() / 3**0.5)
        assert abs(float(logits[image, label].detach() - expected[image, label])) < 5 * deviation + 10 * ROUNDING
        assert 5 * deviation < 0.1  # the bound says something: logits differ by whole numbers


def test_photos_of_breeds_that_imagenet_has_are_named(shared: Path):
    with tarfile.open(shared / "data" / "pets160.tar") as archive:
        members = [m for m in archive.getmembers() if m.name.startswith("test/") and m.name.endswith(".jpg")]
        photos = {
            breed: [archive.extractfile(m).read() for m in members if f"/{breed}/" in m.name][:3] for breed in BREEDS
        }
    classifier = vitkit.Classifier("ti16")
    for breed, name in BREEDS.items():
        answers = [prediction.label for prediction in classifier(photos[breed])]
        assert answers.count(name) >= 2, (breed, answers)


def test_fine_tuning_a_ti16_starts_from_it():
    assert resolve_weights(Fit()) == Fit(model="Ti/16", weights="ti16")
    assert resolve_weights(Fit(weights="ti16")) == Fit(weights="ti16")


def test_a_name_wins_over_a_local_folder_which_a_path_reaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.chdir(tmp_path)
    vitkit.save(vitkit.create("mu/4", classes=3, image=8), "ti16")
    Path("ti16/run.json").write_text(json.dumps({"split": None}))
    with caplog.at_level(logging.WARNING):
        assert name_of(vitkit.load("ti16").config) == "Ti/16"
    assert "ti16: the weights inside the package; write ./ti16 for the local file or folder" in caplog.text
    assert resolve_weights(Fit(weights="ti16")).weights == "ti16"
    assert RunFolder.from_weights("ti16") is None
    caplog.clear()
    for source in ("./ti16", Path("ti16"), str(tmp_path / "ti16")):
        assert name_of(vitkit.load(source).config) == "mu/4"
    assert caplog.text == ""
    assert resolve_weights(Fit(weights="./ti16")).weights == str(tmp_path / "ti16")
    assert RunFolder.from_weights("./ti16") is not None


def test_only_paths_are_paths():
    assert local_path("ti16") is None
    assert local_path("hf:ti16/ti16") is None
    assert local_path("runs/ti16") == Path("runs/ti16")


@pytest.mark.parametrize("word", ["ti-16", "Ti16", "ti6"])
def test_a_mistyped_name_suggests_it(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WeightsError, match=f"{word} does not exist; did you mean ti16"):
        vitkit.load(word)
