"""CLIP towers in timm's format: timm's features, its tensors byte for byte, and transformers' towers written for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import CLIPVisionConfig, CLIPVisionModel, CLIPVisionModelWithProjection

import vitkit
from tests.conftest import expected
from tests.model.kinds import images_for, randomise
from tests.weights.rounding import ROUNDING
from vitkit.errors import WeightsError

CLIP: dict[str, dict[str, Any]] = {"timm_clip": {"gelu": "quick"}, "timm_clip_classifier": {"gelu": "exact"}}
ARCHITECTURES = {
    "timm_clip": "vit_base_patch16_clip_quickgelu_224",
    "timm_clip_classifier": "vit_base_patch16_clip_224",
}
ARGUMENTS = {  # the arguments of timm.create_model that made the fixtures
    "img_size": [16, 16],
    "patch_size": 4,
    "embed_dim": 16,
    "depth": 2,
    "num_heads": 2,
    "mlp_ratio": 1.5,
}
TOWER: dict[str, Any] = {"ln_pre": True, "patch_bias": False, "eps": 1e-5, "gelu": "quick"}
SIZES = {  # of the same tower in transformers
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 4,
    "image_size": 16,
    "intermediate_size": 24,
    "projection_dim": 5,
}


@pytest.mark.parametrize("name", CLIP)
def test_features_equal_timms_at_their_own_size_and_at_another(name: str, fixtures: Path):
    theirs = expected(name)
    for suffix in ("", "_other"):
        images = theirs[f"image{suffix}"]
        path = fixtures / f"{name}_weights.safetensors"
        model = vitkit.load(path, heads=2, image=tuple(images.shape[2:]), **CLIP[name])
        logits, seen = model(images, capture=("encoded",))
        torch.testing.assert_close(logits, theirs[f"logits{suffix}"], atol=ROUNDING, rtol=ROUNDING)
        torch.testing.assert_close(seen["encoded"], theirs[f"tokens{suffix}"], atol=ROUNDING, rtol=ROUNDING)


@pytest.mark.parametrize("name", CLIP)
def test_tensors_survive_a_round_trip_byte_for_byte(name: str, fixtures: Path, tmp_path: Path):
    path = fixtures / f"{name}_weights.safetensors"
    model = vitkit.load(path, heads=2, **CLIP[name])
    vitkit.save(model, tmp_path, format="timm")
    before, after = load_file(path), load_file(tmp_path / "model.safetensors")
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert tensor.numpy().tobytes() == after[key].numpy().tobytes(), key
    again = vitkit.load(tmp_path)
    assert again.config == model.config
    assert again.metadata.interpolation == model.metadata.interpolation == "bicubic"
    images = images_for(model)
    assert torch.equal(again(images), model(images))


@pytest.mark.parametrize("name", CLIP)
def test_the_configuration_names_timms_architecture_and_arguments(name: str, fixtures: Path, tmp_path: Path):
    model = vitkit.load(fixtures / f"{name}_weights.safetensors", heads=2, **CLIP[name])
    vitkit.save(model, tmp_path, format="timm")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architecture"] == ARCHITECTURES[name]
    assert config["num_classes"] == config["pretrained_cfg"]["num_classes"] == 5
    assert config["num_features"] == 16
    assert config["model_args"].items() >= ARGUMENTS.items()
    assert config["model_args"]["pre_norm"]
    assert config["model_args"]["act_layer"] == ("quick_gelu" if name == "timm_clip" else "gelu")


@pytest.mark.parametrize("projected", [True, False])
def test_towers_of_transformers_have_timms_tensors_and_keep_their_features(
    projected: bool, fixtures: Path, tmp_path: Path
):
    torch.manual_seed(0)
    kind = CLIPVisionModelWithProjection if projected else CLIPVisionModel
    theirs = randomise(kind(CLIPVisionConfig(**SIZES)).eval())
    theirs.save_pretrained(tmp_path / "hf")
    model = vitkit.load(tmp_path / "hf")
    vitkit.save(model, tmp_path / "timm", format="timm")
    again = vitkit.load(tmp_path / "timm")
    assert again.config == model.config
    assert again.metadata == model.metadata
    images = images_for(model)
    assert torch.equal(again(images), model(images))
    output = theirs(pixel_values=images)
    features = output.image_embeds if projected else output.pooler_output
    torch.testing.assert_close(again(images), features, atol=ROUNDING, rtol=ROUNDING)

    timms = {name: tensor.shape for name, tensor in load_file(fixtures / "timm_clip_weights.safetensors").items()}
    if not projected:
        del timms["head.weight"], timms["head.bias"]
    written = load_file(tmp_path / "timm/model.safetensors")
    assert {name: tensor.shape for name, tensor in written.items()} == timms
    assert json.loads((tmp_path / "timm/config.json").read_text())["num_classes"] == (5 if projected else 0)


def test_a_classifier_whose_biases_are_zero_stays_a_classifier(tmp_path: Path):
    model = randomise(vitkit.create("mu/8", image=32, classes=3, **TOWER).eval())
    with torch.no_grad():
        model.head.logits.bias.zero_()
    vitkit.save(model, tmp_path, format="timm")
    again = vitkit.load(tmp_path)
    assert again.config == model.config
    images = images_for(model)
    assert torch.equal(again(images), model(images))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**TOWER, "projection": 20, "classes": 3}, "a classifier on top of CLIP's projection"),
        ({**TOWER, "classes": 3, "normalise": True}, "does not support normalise = True"),
        ({**TOWER, "patch_bias": True}, "ln_pre with a bias of the patch embedding"),
        ({**TOWER, "ln_pre": False}, "patch_bias=False without ln_pre"),
        ({"classes": 0, "projection": 20}, "projection=20 without ln_pre"),
        ({**TOWER, "gelu": "tanh", "swiglu": True}, "ln_pre with a stem, SwiGLU or a distillation token"),
        ({**TOWER, "eps": 0.1}, "LayerNorm epsilon: 0.1 in the model, 1e-05 in the format"),
    ],
)
def test_what_timms_towers_cannot_hold_is_refused_by_name(options: dict, message: str, tmp_path: Path):
    with pytest.raises(WeightsError, match=message):
        vitkit.save(vitkit.create("mu/8", image=32, **options), tmp_path / "out", format="timm")
    assert not (tmp_path / "out").exists()
