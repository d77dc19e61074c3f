"""OpenCLIP's own files and timm's CLIP towers: features of a tower that open_clip itself computed (tests/fixtures)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import vitkit
from tests.model.kinds import images_for, make
from tests.weights.rounding import ROUNDING
from vitkit.data.preprocessing import Preprocessing
from vitkit.errors import WeightsError

FIXTURES = Path(__file__).parents[1] / "fixtures"
CLOSE = {"atol": ROUNDING, "rtol": ROUNDING}
VISION = {"image_size": 16, "layers": 2, "width": 32, "head_width": 16, "mlp_ratio": 1.5, "patch_size": 8}
CONFIG: dict[str, Any] = {"model_cfg": {"embed_dim": 20, "quick_gelu": True, "vision_cfg": VISION}}


def original() -> dict[str, torch.Tensor]:
    return load_file(FIXTURES / "openclip_weights.safetensors")


def write(folder: Path, tensors: dict[str, torch.Tensor], config: dict | None, name: str = "open_clip") -> Path:
    folder.mkdir(exist_ok=True)
    weights = "open_clip_model.safetensors" if name == "open_clip" else "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / weights)
    if config is not None:
        (folder / ("open_clip_config.json" if name == "open_clip" else "config.json")).write_text(json.dumps(config))
    return folder


def expected() -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(FIXTURES / "openclip_expected.npz") as arrays:
        return torch.from_numpy(arrays["image"]).permute(0, 3, 1, 2), torch.from_numpy(arrays["features"])


def test_features_are_open_clips_and_survive_transformers_format(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    model = vitkit.load(write(tmp_path / "in", original(), CONFIG))
    images, features = expected()
    torch.testing.assert_close(model(images), features, **CLOSE)
    assert "the text tower is left out (17 tensors" in caplog.text
    assert model.metadata.provenance == {"format": "openclip", "logit_scale": 3.25}
    vitkit.save(model, tmp_path / "hf", format="hf")
    assert torch.equal(vitkit.load(tmp_path / "hf")(images), model(images))


def test_openai_marks_its_files_and_other_files_alone_need_the_gelu(tmp_path: Path):
    folder = write(tmp_path, original(), None)
    with pytest.raises(WeightsError, match=r"gelu='quick'"):
        vitkit.load(folder)
    images, features = expected()
    torch.testing.assert_close(vitkit.load(folder, gelu="quick", heads=2)(images), features, **CLOSE)
    numbers = {name: torch.tensor(7) for name in ("input_resolution", "context_length", "vocab_size")}
    marked = vitkit.load(write(tmp_path, original() | numbers, None), heads=2)  # its heads have 16 numbers, not 64
    torch.testing.assert_close(marked(images), features, **CLOSE)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"pool_type": "avg"}, "pool_type = 'avg'"),
        ({"attentional_pool": True}, "attentional_pool = True"),
        ({"qk_norm": True}, "qk_norm = True"),
        ({"invented": 3}, "invented = 3"),
        ({"ls_init_value": 0.1}, "ls_init_value = 0.1"),
    ],
)
def test_settings_that_our_model_does_not_have_are_refused_by_name(setting: dict, message: str, tmp_path: Path):
    config = {"model_cfg": CONFIG["model_cfg"] | {"vision_cfg": VISION | setting}}
    with pytest.raises(WeightsError, match=message):
        vitkit.load(write(tmp_path, original(), config))


@pytest.mark.parametrize(
    ("planted", "message"),
    [
        ({"visual.attn_pool.query": torch.ones(3)}, "extra     visual.attn_pool.query"),
        ({"visual.ln_pre.bias": None}, "missing   visual.ln_pre.bias"),
        ({"visual.proj": torch.ones(20, 32)}, "visual.proj"),
        ({"visual.transformer.resblocks.1.mlp.c_fc.weight": torch.ones(32, 48)}, "misshapen visual.transformer"),
        ({"adapter.weight": torch.ones(3)}, "extra     adapter.weight"),
    ],
)
def test_a_planted_defect_is_refused_by_the_name_of_the_tensor(planted: dict, message: str, tmp_path: Path):
    tensors = {name: tensor for name, tensor in (original() | planted).items() if tensor is not None}
    if "visual.proj" in planted:  # a transposed projection looks like one from another width
        message = "misshapen visual.proj"
    with pytest.raises(WeightsError, match=message):
        vitkit.load(write(tmp_path, tensors, CONFIG))


def test_preprocessing_is_the_configurations(tmp_path: Path):
    openai = Preprocessing(
        mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711), rounding="timm"
    )
    assert vitkit.load(write(tmp_path, original(), CONFIG)).metadata.preprocessing == openai
    squash = {"resize_mode": "squash", "interpolation": "bilinear", "mean": [0.5] * 3, "std": [0.5] * 3}
    changed = vitkit.load(write(tmp_path, original(), CONFIG | {"preprocess_cfg": squash})).metadata.preprocessing
    assert changed == Preprocessing(resize="squash", interpolation="bilinear", rounding="timm")


def timm_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what timm's own conversion (`_convert_openai_clip`) makes of OpenAI's names."""
    swaps = (
        ("visual.", ""),
        ("conv1", "patch_embed.proj"),
        ("positional_embedding", "pos_embed"),
        ("transformer.resblocks.", "blocks."),
        ("ln_pre", "norm_pre"),
        ("ln_post", "norm"),
        ("ln_", "norm"),
        ("in_proj_", "qkv."),
        ("out_proj", "proj"),
        ("mlp.c_fc", "mlp.fc1"),
        ("mlp.c_proj", "mlp.fc2"),
    )
    out = {}
    for name, tensor in tensors.items():
        if name.startswith("visual."):
            for theirs, timms in swaps:
                name = name.replace(theirs, timms)
            out[name] = tensor
    out["head.weight"] = out.pop("proj").T
    out["head.bias"] = torch.zeros(20)
    out["cls_token"] = out.pop("class_embedding")[None, None]
    out["pos_embed"] = out["pos_embed"][None]
    return out


@pytest.mark.parametrize(
    "config",
    [
        {"architecture": "vit_base_patch16_clip_quickgelu_224", "num_heads": 2},
        {"architecture": "vit_base_patch16_clip_224", "act_layer": "quick_gelu", "num_heads": 2},
        {
            "architecture": "vit_base_patch16_clip_224",
            "num_heads": 2,
            "pretrained_cfg": {"notes": ["natively QuickGELU, use quickgelu model variant for original results"]},
        },
    ],
)
def test_timms_clip_towers_are_the_same_model(config: dict, tmp_path: Path):
    model = vitkit.load(write(tmp_path, timm_names(original()), config, "timm"))
    images, features = expected()
    torch.testing.assert_close(model(images), features, **CLOSE)
    assert model.config.projection == 20
    assert not model.config.classes


def test_timms_clip_tower_alone_needs_the_gelu_and_a_trained_head_stays_a_head(tmp_path: Path):
    tensors = timm_names(original())
    with pytest.raises(WeightsError, match=r"gelu='quick'"):
        vitkit.load(write(tmp_path, tensors, None, "timm"), heads=2)
    fine_tuned = vitkit.load(
        write(tmp_path, tensors | {"head.bias": torch.ones(20)}, None, "timm"), heads=2, gelu="exact"
    )
    assert (fine_tuned.config.classes, fine_tuned.config.projection) == (20, None)
    images, features = expected()
    assert fine_tuned(images).shape == features.shape


def test_siglip_inside_open_clip_is_timms_model(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    siglip = make("attention pool")
    siglip.replace_head(0)
    vitkit.save(siglip, tmp_path / "timm", format="timm")
    trunk = {f"visual.trunk.{name}": tensor for name, tensor in load_file(tmp_path / "timm/model.safetensors").items()}
    others = {"logit_scale": torch.tensor(4.5), "logit_bias": torch.tensor(-10.0), "text.ln_final.bias": torch.ones(3)}
    config = {
        "model_cfg": {
            "embed_dim": 32,
            "vision_cfg": {"image_size": 32, "timm_model_name": "vit_base_patch16_siglip_224"},
        },
        "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3, "resize_mode": "squash"},
    }
    model = vitkit.load(write(tmp_path / "in", trunk | others, config), heads=siglip.config.heads)
    assert model.config.pool == "attention"
    assert model.metadata.preprocessing == Preprocessing(resize="squash", rounding="timm")
    assert model.metadata.provenance == {"format": "openclip", "logit_scale": 4.5, "logit_bias": -10.0}
    assert "the text tower is left out (1 tensors" in caplog.text
    for name, tensor in siglip.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)
    with pytest.raises(WeightsError, match=r"extra     visual\.head\.proj\.weight"):
        vitkit.load(write(tmp_path / "in", trunk | {"visual.head.proj.weight": torch.ones(2, 2)}, config))
    assert model(images_for(model)).shape == (2, 32)
