"""Files that timm wrote give the logits of timm."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import vitkit
from tests.conftest import expected
from tests.model.kinds import images_for, make, randomise
from tests.weights.rounding import ROUNDING
from vitkit.data.preprocessing import Preprocessing
from vitkit.errors import WeightsError
from vitkit.model.config import ViTConfig


@pytest.mark.parametrize("name", ["timm_token", "timm_avg"])
def test_logits_and_tokens_equal_timms(name: str, fixtures: Path):
    model, theirs = vitkit.load(fixtures / f"{name}_weights.safetensors", heads=3), expected(name)
    logits, seen = model(theirs["image"], capture=("encoded",))
    torch.testing.assert_close(logits, theirs["logits"], atol=ROUNDING, rtol=0)
    torch.testing.assert_close(seen["encoded"], theirs["tokens"], atol=ROUNDING, rtol=0)


def test_a_real_trained_model_gives_timms_logits_on_real_photos(shared: Path):
    model = vitkit.load(shared / "weights" / "vit_ti16_in1k_timm.safetensors")
    with np.load(shared / "fixtures" / "real_ti16_expected.npz") as theirs:
        images = torch.from_numpy(theirs["image_uint8"]).permute(0, 3, 1, 2) / 127.5 - 1
        torch.testing.assert_close(
            model(images), torch.from_numpy(theirs["logits"]), atol=10 * ROUNDING, rtol=0
        )  # logits near 10


def test_an_unknown_number_of_heads_is_an_error_that_names_the_argument(fixtures: Path):
    with pytest.raises(WeightsError, match=r"the number of attention heads of .* is unknown[\s\S]*heads=N"):
        vitkit.load(fixtures / "timm_token_weights.safetensors")


def test_the_heads_are_inferred_from_a_known_width(tmp_path: Path):
    save_timm_file(vitkit.create("Ti/16", image=32, depth=1), tmp_path / "ti.safetensors")
    config = vitkit.load(tmp_path / "ti.safetensors").config
    assert isinstance(config, ViTConfig)
    assert config.heads == 3


def test_a_file_alone_has_exact_gelu_and_the_default_preprocessing(fixtures: Path):
    model = vitkit.load(fixtures / "timm_token_weights.safetensors", heads=3)
    assert model.config.gelu == "exact"
    assert model.metadata.preprocessing == Preprocessing(
        resize="crop", crop=0.9, interpolation="bicubic", mean=(0.5,) * 3, std=(0.5,) * 3, rounding="timm"
    )


def test_a_folder_in_the_layout_of_timms_hub_is_read_with_its_config(fixtures: Path, tmp_path: Path):
    save_file(load_file(fixtures / "timm_token_weights.safetensors"), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "architecture": "vit_tiny_patch16_224",
                "num_classes": 10,
                "num_features": 48,
                "global_pool": "token",
                "model_args": {"img_size": 32, "embed_dim": 48, "num_heads": 3, "act_layer": "gelu_tanh"},
                "label_names": list("abcdefghij"),
                "pretrained_cfg": {
                    "mean": [0.485, 0.456, 0.406],
                    "std": [0.229, 0.224, 0.225],
                    "interpolation": "bilinear",
                    "crop_pct": 0.875,
                    "crop_mode": "squash",
                    "input_size": [3, 32, 32],
                },
            }
        )
    )
    model = vitkit.load(tmp_path)
    assert (model.config.heads, model.config.gelu) == (3, "tanh")
    assert model.metadata.labels == tuple("abcdefghij")
    assert model.metadata.preprocessing == Preprocessing(
        resize="squash",
        crop=0.875,
        interpolation="bilinear",
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        rounding="timm",
    )


def test_timms_options_without_biases_and_class_position_are_read(tmp_path: Path):
    """qkv_bias=False is a bias of zero; no_embed_class is a zero position for the class token."""
    model = make("token")
    with torch.no_grad():
        for block in model.encoder.blocks:
            block.attention.qkv.bias.zero_()
        model.encoder.positions[0].table[0].zero_()
    vitkit.save(model, tmp_path, format="timm")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {name: value for name, value in tensors.items() if not name.endswith("qkv.bias")}
    tensors["pos_embed"] = tensors["pos_embed"][:, 1:].contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    config["model_args"] |= {"qkv_bias": False, "no_embed_class": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    images = images_for(model)
    assert torch.equal(vitkit.load(tmp_path)(images), model(images))


@pytest.mark.parametrize(
    "kind",
    [
        "gap",
        "gap-norm",
        "gap-norm with class token",
        "attention pool",
        "no head",
        "no positions",
        "non-square, one channel",
        "exact GELU",
    ],
)
def test_models_that_timm_can_hold_round_trip(kind: str, tmp_path: Path):
    model = make(kind)
    vitkit.save(model, tmp_path / "out", format="timm")
    loaded = vitkit.load(tmp_path / "out")
    assert loaded.config == model.config
    images = images_for(model)
    assert torch.equal(loaded(images), model(images))


@pytest.mark.parametrize("name", ["R+Ti/16", "R26+S/32", "R50x1"])
def test_hybrids_and_resnets_round_trip_under_timms_names(name: str, tmp_path: Path):
    model = randomise(vitkit.create(name, classes=3, image=64)).eval()
    vitkit.save(model, tmp_path / "out", format="timm")
    loaded = vitkit.load(tmp_path / "out")
    for key, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value)
    images = images_for(model)
    torch.testing.assert_close(
        loaded(images), model(images), atol=1e-2, rtol=1e-2
    )  # timm's epsilons differ, which a warning says


def save_timm_file(model: vitkit.create, path: Path) -> None:
    from vitkit.weights import timm_write

    save_file(timm_write.tensors_of(model), path)
