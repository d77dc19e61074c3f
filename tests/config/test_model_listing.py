"""`vitkit list models`: every public checkpoint by name, with size, licence, training data, origin and our score."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from transformers import Dinov2Config, ViTMAEConfig

from vitkit.cli.main import main
from vitkit.config.model_listing import PETS, list_models, untrained_variants
from vitkit.model.variants import NAMED
from vitkit.weights.public import DEFAULTS, KNOWN, PUBLIC
from vitkit.weights.public_families import FAMILIES

ROOT = Path(__file__).parents[2]
LICENCES = {"Apache-2.0", "MIT", "CC-BY-NC-4.0", "DINOv3 License", "apple-amlr"}


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    main(["list", "models", *arguments])
    return capsys.readouterr().out


def test_every_checkpoint_is_listed_with_its_licence_and_data(capsys: pytest.CaptureFixture[str]):
    lines = listed(capsys).splitlines()
    for source, checkpoint in KNOWN.items():
        [line] = [line for line in lines if f" {source}  " in line]
        assert line.startswith(checkpoint.variant)
        assert f"{checkpoint.image} px; {checkpoint.family} on {checkpoint.trained_on}; {checkpoint.licence}" in line
        assert (", gated" in line) == source.startswith("hf:facebook/dinov3")
    assert any(line.startswith("without public weights: ") and "G/14" in line for line in lines)


def test_names_are_unique_and_well_formed():
    assert len(KNOWN) == len(FAMILIES) + sum(map(len, PUBLIC.values()))
    for checkpoint in FAMILIES:
        assert re.fullmatch(r"hf:[A-Za-z]+/[\w.-]+", checkpoint.source)
        assert checkpoint.licence in LICENCES
        patch = int(checkpoint.variant.rpartition("/")[2])
        assert checkpoint.image % patch == 0 or checkpoint.variant == "SO400M/14"  # 384 px are cut to 27 x 27 patches
        # repositories say their sizes in their names
        stated = re.search(r"(?:patch|vit[a-z]+?|ViT-[BLH]-|-[blh])(\d+)(?!\d*b)", checkpoint.source)
        assert stated is None or int(stated[1]) == patch or checkpoint.source.startswith("hf:facebook/dinov3-vit7b")


def test_non_commercial_licences_are_said():
    restricted = {checkpoint.family for checkpoint in FAMILIES if checkpoint.licence not in ("Apache-2.0", "MIT")}
    assert restricted == {"MAE", "I-JEPA", "MetaCLIP", "DFN", "DINOv3"}


def test_fine_tuning_still_starts_from_googles_weights():
    assert set(DEFAULTS) == set(PUBLIC)
    assert all(default.trained_by in ("the paper", "AugReg", "BiT") for default in DEFAULTS.values())


@pytest.mark.parametrize("name", ["hf:facebook/vit-mae-base", "facebook/vit-mae-base"])
def test_one_by_its_name_has_the_details_and_the_command(name: str, capsys: pytest.CaptureFixture[str]):
    text = " ".join(listed(capsys, name).split())
    for part in (
        "hf:facebook/vit-mae-base",
        "size B/16, about 85.8M parameters",
        "licence CC-BY-NC-4.0",
        "from https://huggingface.co/facebook/vit-mae-base",
        "Pets not measured",
        "the card on the Hub states Apache-2.0",
        "use vitkit fit DATA --weights hf:facebook/vit-mae-base",
    ):
        assert part in text


def test_gated_weights_say_how_to_get_them(capsys: pytest.CaptureFixture[str]):
    text = " ".join(listed(capsys, "dinov3-vits16plus").split())
    assert "gated accept its conditions at https://huggingface.co/facebook/dinov3-vits16plus-pretrain" in text
    assert "hf auth login" in text


def test_sizes_and_images_are_those_of_transformers_default_configurations():
    by_name = {model.name: model for model in list_models()}
    mae, dinov2 = ViTMAEConfig(), Dinov2Config()
    assert by_name["hf:facebook/vit-mae-base"].checkpoint.image == mae.image_size
    assert by_name["hf:facebook/vit-mae-base"].checkpoint.variant == f"B/{mae.patch_size}"
    blocks = dinov2.num_hidden_layers * 12 * dinov2.hidden_size**2  # attention 4, MLP 8 times the width squared
    parameters = by_name["hf:facebook/dinov2-base"].parameters
    assert parameters is not None
    assert blocks < parameters < 1.05 * blocks


def test_the_score_is_the_one_of_the_page_that_the_logs_make(capsys: pytest.CaptureFixture[str]):
    page = (ROOT / "docs/pets.md").read_text(encoding="utf-8")
    [row] = [line for line in page.splitlines() if line.startswith("| 224 |")]
    mean, deviation = re.search(r"\*\*([\d.]+)\*\* ± ([\d.]+)", row).groups()  # type: ignore[union-attr]
    assert PETS["ti16"] == f"{mean} ± {deviation}"
    assert f"Pets {mean} ± {deviation} (ours)" in listed(capsys, "Ti/16")
    assert f"{mean} ± {deviation} % top-1" in listed(capsys, "ti16")


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]):
    result = json.loads(listed(capsys, "siglip", "--json"))
    assert {row["family"] for row in result["models"]} == {"SigLIP", "SigLIP 2"}
    assert all(
        set(row)
        == {
            "name",
            "family",
            "variant",
            "image",
            "licence",
            "trained_on",
            "gated",
            "note",
            "parameters",
            "pets",
            "origin",
            "command",
        }
        for row in result["models"]
    )


def test_a_model_without_weights_is_found_and_an_unknown_one_is_an_error(capsys: pytest.CaptureFixture[str]):
    assert "without public weights: g/14, G/14" in listed(capsys, "G/14")
    assert set(untrained_variants()) < set(NAMED)
    with pytest.raises(SystemExit, match="2"):
        main(["list", "models", "dinov9"])
    assert "no model contains 'dinov9'; did you mean DINOv" in capsys.readouterr().err
