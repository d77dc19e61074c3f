"""Weights that were trained without class labels are recognised before they are loaded, and fine-tuned by layer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from transformers import CLIPVisionConfig, Dinov2Config, DINOv3ViTConfig, IJepaConfig, ViTConfig, ViTMAEConfig

from vitkit.config.resolve import resolve
from vitkit.weights.label_free import label_free_family
from vitkit.weights.public import KNOWN

LABELLED = {"the paper", "AugReg", "BiT", "DeiT", "DeiT, distilled", "DeiT-III"}
SAME = {"DINOv2 with registers": "DINOv2", "SigLIP 2": "SigLIP"}  # one recipe for both
CLIPS = {"CLIP of OpenAI", "OpenCLIP", "MetaCLIP", "DFN"}


@pytest.mark.parametrize("source", KNOWN)
def test_every_public_checkpoint_is_recognised_by_its_name(source: str):
    family = KNOWN[source].family
    expected = None if family in LABELLED else "CLIP" if family in CLIPS else SAME.get(family, family)
    assert label_free_family(source) == expected


@pytest.mark.parametrize(
    ("config", "family"),
    [
        (Dinov2Config(), "DINOv2"),
        (DINOv3ViTConfig(), "DINOv3"),
        (ViTMAEConfig(), "MAE"),
        (IJepaConfig(), "I-JEPA"),
        (CLIPVisionConfig(), "CLIP"),
        (ViTConfig(), None),
    ],
    ids=str,
)
def test_a_folder_of_transformers_is_recognised_by_its_configuration(config, family: str | None, tmp_path: Path):
    config.save_pretrained(tmp_path)
    assert label_free_family(str(tmp_path)) == family


@pytest.mark.parametrize(
    ("content", "family"),
    [
        ({"architecture": "vit_small_patch14_dinov2.lvd142m"}, "DINOv2"),
        ({"architecture": "vit_base_patch16_224.augreg_in21k"}, None),
        ({"model_type": 7}, None),
        ([], None),
    ],
)
def test_a_folder_of_timm_is_recognised_and_a_damaged_file_is_not(content, family: str | None, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert label_free_family(str(tmp_path)) == family


@pytest.mark.parametrize("name", ["default", "none", "ti16", "weights.safetensors", "hf:someone/eclipse-vit"])
def test_other_weights_are_not_recognised(name: str):
    assert label_free_family(name) is None


def test_fit_picks_rates_that_decay_by_layer_and_says_why(tmp_path: Path):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (8, 8), (60 * number, 9, 9)).save(tmp_path / "photos" / name / f"{number}.png")
    Dinov2Config().save_pretrained(tmp_path / "dinov2")
    config, _, reason = resolve({"data": str(tmp_path / "photos"), "weights": str(tmp_path / "dinov2")})
    assert config.recipe == "small_layerwise_transfer"
    assert (config.layer_decay, config.lr) == (0.75, 1e-4)
    assert reason == ("small_layerwise_transfer: 8 images, from weights trained without class labels (DINOv2)")
