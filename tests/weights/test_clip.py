"""Image towers of transformers' CLIP and SigLIP: features equal, bytes come back, and nothing is dropped in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    CLIPConfig,
    CLIPModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    CLIPVisionModelWithProjection,
    MetaClip2VisionConfig,
    MetaClip2VisionModelWithProjection,
    SiglipConfig,
    SiglipModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)

import vitkit
from tests.model.kinds import images_for, make, randomise
from tests.weights.rounding import ROUNDING
from vitkit.data.preprocessing import Preprocessing
from vitkit.errors import WeightsError

VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "patch_size": 8,
    "image_size": 32,
    "intermediate_size": 48,
}
TEXT = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 50,
    "max_position_embeddings": 8,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
CLOSE = {"atol": ROUNDING, "rtol": ROUNDING}
OPENAI = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}


def towers() -> dict[str, nn.Module]:
    whole_clip = CLIPConfig(vision_config=VISION | {"hidden_act": "gelu"}, text_config=TEXT, projection_dim=20)
    whole_siglip = SiglipConfig(vision_config=VISION, text_config=TEXT | {"projection_size": 32})
    return {
        "CLIPVisionModel": CLIPVisionModel(CLIPVisionConfig(**VISION)),
        "CLIPVisionModelWithProjection": CLIPVisionModelWithProjection(CLIPVisionConfig(**VISION, projection_dim=20)),
        "CLIPModel, exact GELU": CLIPModel(whole_clip),
        "MetaCLIP 2": MetaClip2VisionModelWithProjection(MetaClip2VisionConfig(**VISION, projection_dim=20)),
        "SiglipVisionModel": SiglipVisionModel(SiglipVisionConfig(**VISION)),
        "SiglipModel": SiglipModel(whole_siglip),
    }


NAMES = (
    "CLIPVisionModel",
    "CLIPVisionModelWithProjection",
    "CLIPModel, exact GELU",
    "MetaCLIP 2",
    "SiglipVisionModel",
    "SiglipModel",
)


def written(name: str, folder: Path) -> nn.Module:
    torch.manual_seed(0)
    theirs = randomise(towers()[name].eval())
    theirs.save_pretrained(folder)
    return theirs


@torch.no_grad()
def features(theirs: nn.Module, images: torch.Tensor, **options: bool) -> torch.Tensor:
    if hasattr(theirs, "get_image_features"):
        output = theirs.get_image_features(pixel_values=images, **options)
        return output if isinstance(output, torch.Tensor) else output.pooler_output
    output = theirs(pixel_values=images, **options)
    return output.image_embeds if hasattr(output, "image_embeds") else output.pooler_output


@pytest.mark.parametrize("name", NAMES)
def test_features_are_those_of_transformers_and_its_weights_come_back_byte_for_byte(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    theirs = written(name, tmp_path / "theirs")
    ours = vitkit.load(tmp_path / "theirs")
    images = images_for(ours)
    torch.testing.assert_close(ours(images), features(theirs, images), **CLOSE)

    vitkit.save(ours, tmp_path / "ours", format="hf")
    again = vitkit.load(tmp_path / "ours")
    assert again.config == ours.config
    assert again.metadata.provenance == ours.metadata.provenance
    assert again.metadata.preprocessing == ours.metadata.preprocessing
    original, copy = (load_file(tmp_path / one / "model.safetensors") for one in ("theirs", "ours"))
    whole = "logit_scale" in original
    image_tower = {
        name if name.startswith(("vision_model.", "visual_projection.")) else f"vision_model.{name}": tensor
        for name, tensor in original.items()
        if not name.startswith(("text_model.", "text_projection.", "logit_"))
    }
    assert copy.keys() == image_tower.keys()
    for tensor in copy:
        assert copy[tensor].numpy().tobytes() == image_tower[tensor].numpy().tobytes(), tensor
    assert ("the text tower is left out" in caplog.text) == whole
    assert ours.metadata.provenance.get("logit_scale") == (float(original["logit_scale"]) if whole else None)


@pytest.mark.parametrize("image", [(48, 48), (16, 40)])
@pytest.mark.parametrize("name", NAMES)
def test_features_at_another_size_are_those_of_transformers(name: str, image: tuple[int, int], tmp_path: Path):
    theirs = written(name, tmp_path)
    ours = vitkit.load(tmp_path, image=image)
    images = images_for(ours)
    assert images.shape[2:] == image
    expected = features(theirs, images, interpolate_pos_encoding=True)
    torch.testing.assert_close(ours(images), expected, **CLOSE)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("CLIPVisionModel", CLIPVisionModel),
        ("CLIPModel, exact GELU", CLIPVisionModelWithProjection),
        ("SiglipModel", SiglipVisionModel),
    ],
)
def test_transformers_reads_the_towers_that_we_write(name: str, kind: Any, tmp_path: Path):
    written(name, tmp_path / "theirs")
    ours = vitkit.load(tmp_path / "theirs")
    vitkit.save(ours, tmp_path / "ours", format="hf")
    theirs, report = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    images = images_for(ours)
    torch.testing.assert_close(features(theirs.eval(), images), ours(images), **CLOSE)


def test_preprocessing_is_the_files_or_the_familys_default(tmp_path: Path):
    clip = {"resize": "crop", "interpolation": "bicubic", "rounding": "transformers", **OPENAI}
    siglip = {"resize": "squash", "interpolation": "bicubic", "rounding": "transformers"}
    for name, expected, record in (
        ("CLIPVisionModel", clip, {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32}}),
        (
            "SiglipVisionModel",
            siglip,
            {"image_processor_type": "SiglipImageProcessor", "size": {"height": 32, "width": 32}},
        ),
    ):
        written(name, tmp_path / name)
        assert vitkit.load(tmp_path / name).metadata.preprocessing == Preprocessing(**expected)
        assert "there is no preprocessor_config.json" in vitkit.load(tmp_path / name).metadata.preprocessing.origin
        (tmp_path / name / "preprocessor_config.json").write_text(
            json.dumps(record | {"crop_size": 32, "do_center_crop": "Clip" in name, "image_mean": [0.1, 0.2, 0.3]})
        )
        changed = vitkit.load(tmp_path / name).metadata.preprocessing
        assert (changed.mean, changed.resize, changed.origin) == ((0.1, 0.2, 0.3), expected["resize"], "")


def change(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


@pytest.mark.parametrize("name", ["CLIPModel, exact GELU", "SiglipModel"])
@pytest.mark.parametrize(
    ("tensor", "defect", "message"),
    [
        ("vision_model.encoder.layers.0.gamma", "extra", "extra     vision_model.encoder.layers.0.gamma"),
        ("classifier.weight", "extra", "extra     classifier.weight"),
        ("vision_model.post_layernorm.bias", "missing", "missing   vision_model.post_layernorm.bias"),
        ("vision_model.encoder.layers.1.self_attn.k_proj.bias", "missing", "self_attn.k_proj.bias"),
        (
            "vision_model.encoder.layers.1.mlp.fc2.weight",
            "transposed",
            "misshapen vision_model.encoder.layers.1.mlp.fc2",
        ),
        ("logit_scale", "nan", "has a logit_scale that is no finite number"),
    ],
)
def test_a_planted_defect_is_refused_by_the_name_of_the_tensor(
    name: str, tensor: str, defect: str, message: str, tmp_path: Path
):
    written(name, tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    planted = {
        "extra": lambda: torch.ones(32),
        "missing": lambda: None,
        "transposed": lambda: stored[tensor].T,
        "nan": lambda: torch.tensor(float("nan")),
    }[defect]()
    change(tmp_path, **{tensor: planted})
    with pytest.raises(WeightsError) as caught:
        vitkit.load(tmp_path)
    assert message in str(caught.value)


def test_a_whole_clip_without_its_projection_is_damaged(tmp_path: Path):
    written("CLIPModel, exact GELU", tmp_path)
    change(tmp_path, **{"visual_projection.weight": None})
    with pytest.raises(WeightsError, match=r"lacks visual_projection\.weight"):
        vitkit.load(tmp_path)


def test_siglip_without_its_attention_pool_is_refused_by_its_tensors(tmp_path: Path):
    written("SiglipVisionModel", tmp_path)
    change(tmp_path, **{"head.probe": None})
    with pytest.raises(WeightsError, match=r"missing   head\.probe"):
        vitkit.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("SiglipVisionModel", {"model_type": "siglip2_vision_model"}, "is a NaFlex SigLIP 2"),
        ("SiglipVisionModel", {"model_type": "idefics3_vision"}, "type idefics3_vision"),
        ("CLIPVisionModel", {"model_type": "clipseg_vision_model"}, "type clipseg_vision_model"),
        ("CLIPVisionModel", {"hidden_act": "relu"}, "uses the activation 'relu'"),
        ("CLIPVisionModel", {"layer_norm_eps": "small"}, "layer_norm_eps should be a number"),
    ],
)
def test_a_configuration_of_another_model_is_refused(name: str, changes: dict, message: str, tmp_path: Path):
    written(name, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(WeightsError, match=message):
        vitkit.load(tmp_path)


def test_a_file_of_clip_without_its_configuration_needs_the_gelu(tmp_path: Path):
    theirs = written("CLIPVisionModelWithProjection", tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"gelu='quick'"):
        vitkit.load(tmp_path, heads=4)
    ours = vitkit.load(tmp_path, heads=4, gelu="quick")
    images = images_for(ours)
    torch.testing.assert_close(ours(images), features(theirs, images), **CLOSE)


def test_a_gelu_that_the_configuration_contradicts_is_refused(tmp_path: Path):
    written("CLIPVisionModel", tmp_path)
    with pytest.raises(WeightsError, match="has gelu quick, not exact"):
        vitkit.load(tmp_path, gelu="exact")


def test_the_patches_of_an_image_size_that_they_do_not_divide_are_announced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    torch.manual_seed(0)
    theirs = randomise(SiglipVisionModel(SiglipVisionConfig(**VISION | {"image_size": 37})).eval())
    theirs.save_pretrained(tmp_path)
    ours = vitkit.load(tmp_path)
    assert ours.config.image == (32, 32)
    assert "images of 37 x 37 px, of which its patches cover 32 x 32" in caplog.text
    images = images_for(ours)
    padded = nn.functional.pad(images, (0, 5, 0, 5))  # a convolution without padding never reads these pixels
    torch.testing.assert_close(ours(images), features(theirs, padded), **CLOSE)


@pytest.mark.parametrize(
    ("kind", "lost"), [("like CLIP", "classes = 10"), ("attention pool", "classes = 10"), ("projection", "projection")]
)
def test_what_transformers_towers_cannot_hold_is_refused_by_name(kind: str, lost: str, tmp_path: Path):
    with pytest.raises(WeightsError, match=lost):
        vitkit.save(make(kind), tmp_path / "out", format="hf")
    assert not (tmp_path / "out").exists()
