"""The licence of weights: read from their folder, kept through training and saving, printed once when they load."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard, ModelCardData
from transformers import ViTConfig, ViTModel

import vitkit
from tests.model.kinds import make
from vitkit.config.schema import Fit
from vitkit.train.initial_model import initial_model
from vitkit.weights import licence
from vitkit.weights.licence import card_licence, known_licence


@pytest.fixture(autouse=True)
def nothing_printed_yet(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(licence, "_printed", set())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a small ViT as transformers does."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    ViTModel(ViTConfig(**sizes, image_size=32, patch_size=8), add_pooling_layer=False).save_pretrained(
        tmp_path / "weights"
    )
    return tmp_path / "weights"


def write_card(folder: Path, **front_matter: str) -> None:
    """Write README.md as huggingface_hub does."""
    data = ModelCardData(**front_matter)
    ModelCard(f"---\n{data.to_yaml()}\n---\n\n# A model\n").save(folder / "README.md")


def test_a_card_states_the_licence_and_loading_prints_it_once(folder: Path, caplog: pytest.LogCaptureFixture):
    write_card(folder, license="cc-by-nc-4.0")
    for _ in range(2):
        model = vitkit.load(folder)
    assert model.metadata.provenance == {"format": "hf", "license": "cc-by-nc-4.0"}
    assert [record.getMessage() for record in caplog.records if "licence" in record.getMessage()] == [
        f"{folder}: licence cc-by-nc-4.0"
    ]


def test_another_licence_goes_by_its_name(folder: Path):
    write_card(folder, license="other", license_name="dinov3-license", license_link="LICENSE.md")
    assert vitkit.load(folder).metadata.provenance["license"] == "dinov3-license"


@pytest.mark.parametrize(
    "card",
    ["", "# no front matter", "---\nlicense: unknown\n---\n", "---\nlicense: [\n---\n", "---\n- a\n---\n", "---"],
)
def test_a_card_without_a_licence_states_none(folder: Path, card: str, caplog: pytest.LogCaptureFixture):
    (folder / "README.md").write_text(card)
    with caplog.at_level(logging.WARNING):
        assert "license" not in vitkit.load(folder).metadata.provenance
    assert "licence" not in caplog.text
    assert card_licence(folder) is None


def test_timms_configuration_states_the_licence(tmp_path: Path):
    vitkit.save(make("token"), tmp_path / "timm", format="timm")
    config = json.loads((tmp_path / "timm/config.json").read_text())
    config.setdefault("pretrained_cfg", {})["license"] = "apache-2.0"
    (tmp_path / "timm/config.json").write_text(json.dumps(config))
    assert vitkit.load(tmp_path / "timm").metadata.provenance["license"] == "apache-2.0"
    write_card(tmp_path / "timm", license="mit")  # the card is what a reader of the Hub sees
    assert vitkit.load(tmp_path / "timm").metadata.provenance["license"] == "mit"


def test_a_checkpoint_that_we_know_has_the_licence_of_its_authors():
    assert known_licence("hf:facebook/vit-mae-base@main") == "CC-BY-NC-4.0"
    assert known_licence("hf:facebook/dinov2-base") == "Apache-2.0"
    assert known_licence("hf:someone/else") is None


@pytest.mark.parametrize("format", ["vitkit", "timm", "hf"])
def test_the_licence_stays_with_saved_weights(
    folder: Path, tmp_path: Path, format: str, caplog: pytest.LogCaptureFixture
):
    write_card(folder, license="cc-by-nc-4.0")
    vitkit.save(vitkit.load(folder), tmp_path / "saved", format=format)  # type: ignore[arg-type]
    caplog.clear()
    assert vitkit.load(tmp_path / "saved").metadata.provenance["license"] == "cc-by-nc-4.0"
    assert "licence cc-by-nc-4.0" in caplog.text


def test_a_model_trained_from_weights_keeps_their_licence(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    write_card(folder, license="cc-by-nc-4.0")
    settings = Fit(data="photos", model="", weights=str(folder), image=(32, 32))
    model, _ = initial_model(settings, ["cat", "dog"], multilabel=False)
    assert model.metadata.provenance["before"]["license"] == "cc-by-nc-4.0"  # which the model card of the run states
    vitkit.save(model, tmp_path / "run")
    caplog.clear()
    vitkit.load(tmp_path / "run")
    assert "licence of the weights that it was trained from cc-by-nc-4.0" in caplog.text
