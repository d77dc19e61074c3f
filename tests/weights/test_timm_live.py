"""Compared with timm where it is installed; it needs torchvision, which the default environment lacks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

import vitkit
from tests.model.kinds import images_for, make, randomise
from tests.weights.rounding import ROUNDING
from tests.weights.test_timm_families import TIMM
from vitkit.model.positions import resize_table

timm = pytest.importorskip("timm")


@pytest.mark.parametrize(
    "kind",
    [
        "token",
        "non-square, one channel",
        "exact GELU",
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


@given(grid=st.tuples(st.integers(1, 9), st.integers(2, 9)), target=st.tuples(st.integers(1, 9), st.integers(2, 9)))
def test_bicubic_resizing_is_timms(grid: tuple[int, int], target: tuple[int, int]):
    from timm.layers import resample_abs_pos_embed

    table = torch.randn(grid[0] * grid[1], 6)
    theirs = resample_abs_pos_embed(table[None], list(target), list(grid), num_prefix_tokens=0)[0]
    torch.testing.assert_close(
        resize_table(table, grid, target, "bicubic"), theirs, atol=8 * torch.finfo(torch.float32).eps, rtol=0
    )
