"""DINOv2, DINOv3, DeiT, DeiT-III and MAE in timm's names and in their authors' give the features of timm."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitkit
from tests.conftest import expected
from tests.model.kinds import images_for, make, randomise
from vitkit.errors import WeightsError
from vitkit.model.positions import sincos_table
from vitkit.weights import timm_write

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
TIMM = [
    "timm_dinov2",
    "timm_dinov2_giant",
    "timm_dinov2_reg4",
    "timm_dinov3",
    "timm_dinov3_plus",
    "timm_deit_distilled",
    "timm_deit3",
]
AUTHORS = ["facebook_dinov2_giant", "facebook_dinov2_reg4", "facebook_dinov3_plus", "facebook_deit3"]


@pytest.mark.parametrize("name", TIMM + AUTHORS)
def test_features_equal_timms_at_their_own_size_and_at_another(name: str, fixtures: Path):
    theirs = expected(name)
    for suffix in ("", "_other"):
        images = theirs[f"image{suffix}"]
        # the authors of DINOv2 and DeiT-III resize in other ways than timm, which the expected values are of
        filter = "bicubic" if name in AUTHORS else None
        image = tuple(images.shape[2:])
        model = vitkit.load(fixtures / f"{name}_weights.safetensors", heads=2, image=image, interpolation=filter)
        logits, seen = model(images, capture=("encoded",))
        torch.testing.assert_close(logits, theirs[f"logits{suffix}"], **CLOSE)
        torch.testing.assert_close(seen["encoded"], theirs[f"tokens{suffix}"], **CLOSE)


@pytest.mark.parametrize("name", TIMM)
def test_tensors_survive_a_round_trip_byte_for_byte(name: str, fixtures: Path, tmp_path: Path):
    path = fixtures / f"{name}_weights.safetensors"
    model = vitkit.load(path, heads=2)
    vitkit.save(model, tmp_path, format="timm")
    before, after = load_file(path), load_file(tmp_path / "model.safetensors")
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert torch.equal(tensor, after[key]), key
    again = vitkit.load(tmp_path)
    assert again.config == model.config
    assert again.metadata.interpolation == model.metadata.interpolation
    images = images_for(model)
    assert torch.equal(again(images), model(images))


@pytest.mark.parametrize("name", TIMM + AUTHORS)
def test_planted_missing_and_transposed_tensors_are_refused_by_the_files_names(
    name: str, fixtures: Path, tmp_path: Path
):
    tensors = load_file(fixtures / f"{name}_weights.safetensors")
    missing = sorted(key for key in tensors if key.startswith("blocks.1.") and ("gamma" in key or "norm2" in key))[0]
    transposed = sorted(key for key in tensors if key.startswith("blocks.1.mlp.") and key.endswith("weight"))[0]
    path = tmp_path / "weights.safetensors"
    for change, message in (
        ({**tensors, "blocks.1.extra": torch.zeros(3)}, r"extra +blocks.1.extra"),
        ({key: tensor for key, tensor in tensors.items() if key != missing}, rf"missing +{missing}"),
        ({**tensors, transposed: tensors[transposed].T.contiguous()}, rf"misshapen +{transposed}"),
    ):
        save_file(change, path)
        with pytest.raises(WeightsError, match=message):
            vitkit.load(path, heads=2)


@pytest.mark.parametrize(
    ("name", "interpolation"),
    [
        ("timm_dinov2", "bicubic"),
        ("timm_deit3", "bicubic"),
        ("facebook_dinov2_giant", "dino"),
        ("facebook_dinov2_reg4", "bicubic"),
        ("facebook_deit3", "bicubic-no-antialias"),
    ],
)
def test_files_alone_have_the_published_constants(name: str, interpolation: str, fixtures: Path):
    metadata = vitkit.load(fixtures / f"{name}_weights.safetensors", heads=2).metadata
    assert metadata.interpolation == interpolation
    assert metadata.preprocessing.mean == (0.485, 0.456, 0.406)
    assert metadata.preprocessing.origin


@pytest.mark.parametrize("name", ["facebook_dinov2_giant", "facebook_dinov2_reg4", "facebook_dinov3_plus"])
def test_the_authors_mask_token_is_left_out_with_a_message(name: str, fixtures: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        vitkit.load(fixtures / f"{name}_weights.safetensors", heads=2)
    assert "mask_token left out" in caplog.text


def test_other_rotary_periods_and_other_masks_of_biases_are_refused(fixtures: Path, tmp_path: Path):
    tensors = load_file(fixtures / "facebook_dinov3_plus_weights.safetensors")
    path, mask = tmp_path / "weights.safetensors", "blocks.1.attn.qkv.bias_mask"
    for change, message in (
        ({"rope_embed.periods": tensors["rope_embed.periods"] * 2}, "rope_embed.periods are not those of DINOv3"),
        ({mask: torch.ones(48)}, f"{mask} does not keep"),
    ):
        save_file({**tensors, **change}, path)
        with pytest.raises(WeightsError, match=message):
            vitkit.load(path, heads=2)


def test_maes_files_are_known_by_their_table_and_lose_their_decoder_with_a_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    model = randomise(vitkit.create("mu/8", image=32, classes=0, gelu="exact").eval())
    with torch.no_grad():
        model.encoder.positions[0].table.copy_(sincos_table((4, 4), 32, 1))
    tensors = timm_write.tensors_of(model)
    save_file(tensors, tmp_path / "encoder.safetensors")
    decoder = {"decoder_embed.weight": torch.randn(8, 32), "decoder_embed.bias": torch.randn(8)}
    decoder |= {"mask_token": torch.zeros(1, 1, 8), "decoder_blocks.0.norm1.weight": torch.ones(8)}
    save_file({**tensors, **decoder}, tmp_path / "both.safetensors")
    images = images_for(model)
    for file in ("encoder", "both"):
        with caplog.at_level(logging.WARNING):
            loaded = vitkit.load(tmp_path / f"{file}.safetensors", heads=2)
        assert torch.equal(loaded(images), model(images))
        assert loaded.metadata.preprocessing.mean == (0.485, 0.456, 0.406)
        assert loaded.metadata.interpolation == "bicubic-no-antialias"
    assert "4 tensors of MAE's decoder left out" in caplog.text


def test_what_timm_cannot_hold_is_refused_by_name(tmp_path: Path):
    with pytest.raises(WeightsError, match="in timm, all of them have positions or none has"):
        vitkit.save(make("registers"), tmp_path / "out", format="timm")
    with pytest.raises(WeightsError, match="does not support distillation = 'token'"):
        vitkit.save(make("distillation token"), tmp_path / "out", format="timm")


def test_a_folder_of_timms_hub_without_model_args_is_read_by_its_tensors(fixtures: Path, tmp_path: Path):
    """timm's own folders name an architecture, not its arguments: the tensors say that no position is the class's."""
    save_file(load_file(fixtures / "timm_dinov2_reg4_weights.safetensors"), tmp_path / "model.safetensors")
    config = {
        "architecture": "vit_small_patch14_reg4_dinov2",
        "num_classes": 0,
        "global_pool": "token",
        "pretrained_cfg": {
            "input_size": [3, 16, 16],
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
            "crop_pct": 1.0,
            "interpolation": "bicubic",
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = vitkit.load(tmp_path, heads=2)
    assert (model.config.registers, model.config.class_position) == (4, False)
    theirs = expected("timm_dinov2_reg4")
    torch.testing.assert_close(model(theirs["image"]), theirs["logits"], **CLOSE)


@pytest.mark.parametrize(
    ("architecture", "tag", "expected"),
    [
        ("vit_base_patch16_siglip_224", "webli", "bicubic"),
        ("vit_huge_patch14_gap_224", "in1k_ijepa", "bicubic"),
        ("vit_base_patch16_224", "mae", "bicubic"),
        ("deit_tiny_patch16_224", "fb_in1k", "bicubic"),
        ("vit_tiny_patch16_224", "augreg_in21k_ft_in1k", "paper"),
    ],
)
def test_the_filter_of_positions_is_that_of_the_family_and_survives_a_round_trip(
    architecture: str, tag: str, expected: str, tmp_path: Path
):
    vitkit.save(vitkit.create("mu/16", classes=3, image=32), tmp_path, format="timm")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["position_interpolation"]
    config |= {"architecture": architecture, "pretrained_cfg": {**config["pretrained_cfg"], "tag": tag}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = vitkit.load(tmp_path)
    assert model.metadata.interpolation == expected
    vitkit.save(model, tmp_path / "again", format="timm")
    assert vitkit.load(tmp_path / "again").metadata.interpolation == expected


def test_a_configuration_of_another_size_names_the_patches_that_there_are(tmp_path: Path):
    """timm's pretrained_cfg keeps its size where create_model was given another img_size."""
    model = vitkit.create("mu/16", classes=3, image=64, class_position=False)
    vitkit.save(model, tmp_path, format="timm")
    config = json.loads((tmp_path / "config.json").read_text())
    config["model_args"]["img_size"] = [96, 96]
    config["pretrained_cfg"]["input_size"] = [3, 96, 96]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(vitkit.VitkitError, match=r"positions for 16 patches, not for 6 x 6(.|\n)*grid=") as failed:
        vitkit.load(tmp_path)
    assert "--grid" in str(failed.value)
    assert vitkit.load(tmp_path, grid=(4, 4)).config == model.config


@pytest.mark.parametrize(
    ("name", "token", "architecture"),
    [
        ("timm_deit3", "cls_token", "deit3_small_patch16_224"),
        ("timm_dinov2_reg4", "cls_token", "vit_small_patch14_reg4_dinov2"),
        ("timm_dinov2_reg4", "reg_token", "vit_small_patch14_reg4_dinov2"),
        ("timm_dinov3", "reg_token", "vit_small_patch16_dinov3_qkvb"),
    ],
)
@pytest.mark.parametrize("arguments", ["model_args", "architecture"])
def test_a_missing_token_is_refused_by_name(
    name: str, token: str, architecture: str, arguments: str, fixtures: Path, tmp_path: Path
):
    """Without the token, the other tensors are a model, too; what tells is the number in config.json, or the name."""
    vitkit.save(vitkit.load(fixtures / f"{name}_weights.safetensors", heads=2), tmp_path, format="timm")
    config = json.loads((tmp_path / "config.json").read_text())
    if arguments == "architecture":
        config["architecture"] = architecture
        for argument in ("class_token", "reg_tokens", "num_reg_tokens"):
            config["model_args"].pop(argument, None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[token]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=f"lacks {token}"):
        vitkit.load(tmp_path, heads=2)
