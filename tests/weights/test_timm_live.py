"""Compared with timm where it is installed; it needs torchvision, which the default environment lacks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import vitkit
from tests.model.kinds import images_for, make, randomise
from tests.weights.rounding import ROUNDING
from tests.weights.test_timm_clip import CLIP, TOWER
from tests.weights.test_timm_families import TIMM
from vitkit.model.positions import resize_table

timm = pytest.importorskip("timm")


@pytest.mark.parametrize(
    "kind",
    [
        "token",
        "non-square, one channel",
        "exact GELU",
        "quick GELU",
        "gap",
        "gap-norm",
        "no positions",
        "gap-norm with class token",
        "attention pool",
        "no head",
    ],
)
def test_timm_reads_what_we_write(kind: str, tmp_path: Path):
    check_timm_reads(make(kind), tmp_path, tolerance=ROUNDING)


@pytest.mark.parametrize("name", ["R+Ti/16", "R26+S/32", "R50+B/16", "R50x1", "R101x1"])
def test_timm_reads_our_hybrids_and_resnets(name: str, tmp_path: Path):
    # random kernels at their natural scale: timm's epsilons differ from Google's, which tiny deviations would magnify
    model = vitkit.create(name, classes=7, image=64).eval()
    with torch.no_grad():
        model.head.logits.weight.normal_(std=0.02)
    check_timm_reads(model, tmp_path, tolerance=2e-3)


def check_timm_reads(model: torch.nn.Module, folder: Path, tolerance: float) -> None:
    vitkit.save(model, folder, format="timm")
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = images_for(model)
    torch.testing.assert_close(theirs(images), model(images), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("vit_tiny_patch16_224", {"img_size": 64}),
        ("vit_small_patch32_224", {"img_size": (64, 128)}),
        ("vit_tiny_patch16_224", {"img_size": 64, "global_pool": "avg", "class_token": False}),
        ("vit_tiny_patch16_224", {"img_size": 64, "global_pool": "avg", "fc_norm": False, "class_token": False}),
        ("vit_tiny_patch16_224", {"img_size": 64, "qkv_bias": False}),
        ("vit_tiny_patch16_224", {"img_size": 64, "in_chans": 1, "num_classes": 0}),
        ("vit_tiny_r_s16_p8_224", {"img_size": 64}),
        ("vit_small_r26_s32_224", {"img_size": 64}),
        ("vit_base_r50_s16_224", {"img_size": 64}),
        ("resnetv2_50x1_bit", {}),
        ("resnetv2_50x3_bit", {}),
    ],
)
def test_we_read_what_timm_writes(architecture: str, options: dict, tmp_path: Path):
    theirs = randomise(timm.create_model(architecture, **{"num_classes": 5, **options}).eval())
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    size = options.get("img_size", 64)
    height, width = (size, size) if isinstance(size, int) else size
    grid = (2, 4) if height != width else None
    ours = vitkit.load(tmp_path / "weights.safetensors", grid=grid)
    images = torch.randn(2, ours.config.channels, height, width)
    torch.testing.assert_close(ours(images), theirs(images), atol=10 * ROUNDING, rtol=10 * ROUNDING)


@pytest.mark.parametrize("name", TIMM)
def test_timm_reads_what_we_write_of_later_families(name: str, fixtures: Path, tmp_path: Path):
    model = vitkit.load(fixtures / f"{name}_weights.safetensors", heads=2)
    check_timm_reads(model, tmp_path, tolerance=ROUNDING)


@pytest.mark.parametrize("name", CLIP)
def test_timm_reads_what_we_write_of_its_clip_towers(name: str, fixtures: Path, tmp_path: Path):
    model = vitkit.load(fixtures / f"{name}_weights.safetensors", heads=2, **CLIP[name])
    check_timm_reads(model, tmp_path, tolerance=ROUNDING)


@pytest.mark.parametrize(
    "options",
    [
        {"projection": 20},
        {"projection": 20, "gelu": "exact", "image": (16, 40)},
        {"gelu": "tanh", "channels": 1},
        {"classes": 3, "gelu": "exact"},
        {"classes": 3, "pool": "gap"},
        {"projection": 20, "pool": "gap-norm", "class_token": False},
        {"projection": 20, "pool": "attention"},
        {"layer_scale": 0.1, "registers": 2, "class_position": False},
        {"positions": "none"},
    ],
)
def test_timm_reads_our_clip_towers_and_we_read_them_again(options: dict, tmp_path: Path):
    model = randomise(vitkit.create("mu/8", **{"image": 32, "classes": 0, **TOWER, **options}).eval())
    check_timm_reads(model, tmp_path, tolerance=ROUNDING)
    assert vitkit.load(tmp_path).config == model.config


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("vit_xsmall_patch16_clip_224", {"num_classes": 512}),
        ("vit_base_patch32_clip_quickgelu_224", {"num_classes": 512, "depth": 2}),
        ("vit_giant_patch14_clip_224", {"num_classes": 0, "depth": 1}),
    ],
)
def test_the_folder_that_timm_saves_of_a_clip_tower_comes_back_byte_for_byte(
    architecture: str, options: dict, tmp_path: Path
):
    from timm.models import save_for_hf

    theirs = timm.create_model(architecture, **options).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name != "head.bias":
                parameter.add_(torch.randn_like(parameter) * 0.02)
    save_for_hf(theirs, tmp_path / "theirs", safe_serialization=True, model_args=options)
    ours = vitkit.load(tmp_path / "theirs", heads=theirs.blocks[0].attn.num_heads)
    assert (ours.config.projection or 0) == options["num_classes"]
    check_timm_reads(ours, tmp_path / "ours", tolerance=10 * ROUNDING)
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "ours"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.numpy().tobytes() == after[name].numpy().tobytes(), name
    images = images_for(ours)
    torch.testing.assert_close(ours(images), theirs(images), atol=10 * ROUNDING, rtol=10 * ROUNDING)


@given(grid=st.tuples(st.integers(1, 9), st.integers(2, 9)), target=st.tuples(st.integers(1, 9), st.integers(2, 9)))
def test_bicubic_resizing_is_timms(grid: tuple[int, int], target: tuple[int, int]):
    from timm.layers import resample_abs_pos_embed

    table = torch.randn(grid[0] * grid[1], 6)
    theirs = resample_abs_pos_embed(table[None], list(target), list(grid), num_prefix_tokens=0)[0]
    torch.testing.assert_close(
        resize_table(table, grid, target, "bicubic"), theirs, atol=8 * torch.finfo(torch.float32).eps, rtol=0
    )
