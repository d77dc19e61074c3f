"""DINOv2, DINOv3, MAE, I-JEPA and DeiT of transformers: vitkit reads its models, and it reads ours."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import vitkit
from tests.model.kinds import images_for
from tests.weights.families import DECODER, FAMILIES, MLP, SIZE, build, features, save
from vitkit.errors import WeightsError

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
EVERY = pytest.mark.parametrize("family", list(FAMILIES))
ONE_OF_EACH = pytest.mark.parametrize("family", ["DINOv2", "DINOv3", "MAE", "I-JEPA", "DeiT with teacher"])


@EVERY
def test_features_equal_those_of_transformers_at_any_size(family: str, tmp_path: Path):
    theirs = save(family, tmp_path)
    for image in (None, 48, (16, 40), 24):  # its own size, larger, not square, smaller
        ours = vitkit.load(tmp_path, image=image)
        images = images_for(ours)
        with torch.no_grad():
            output, seen = ours(images, capture=("encoded",))
        expected, tokens = features(theirs, images)
        torch.testing.assert_close(seen["encoded"], tokens, **CLOSE)
        if expected is not None:
            torch.testing.assert_close(output, expected, **CLOSE)


@EVERY
def test_tensors_survive_a_round_trip_byte_for_byte_and_transformers_loads_them(family: str, tmp_path: Path):
    theirs = save(family, tmp_path / "theirs")
    vitkit.save(vitkit.load(tmp_path / "theirs"), tmp_path / "native")  # through vitkit's own format
    vitkit.save(vitkit.load(tmp_path / "native"), tmp_path / "ours", format="hf")
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "ours"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name
    kind = getattr(transformers, json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"][0])
    assert kind is type(theirs)
    again, report = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    if hasattr(again.config, "mask_ratio"):
        again.config.mask_ratio = 0.0  # a setting of pre-training
    images = torch.randn(2, 3, 32, 32)
    for one, other in zip(features(again.eval(), images), features(theirs, images), strict=True):
        assert one is None or torch.equal(one, other)


@EVERY
def test_planted_missing_and_transposed_tensors_are_refused_by_name(family: str, tmp_path: Path):
    save(family, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    planted = next(
        name for name in tensors if name.endswith("1.attention.output.dense.bias") or "1.attention.o_proj.b" in name
    )
    transposed = next(
        name for name, tensor in tensors.items() if tensor.ndim == 2 and tensor.shape[0] != tensor.shape[1] > 1
    )
    for change, message in (
        ({**tensors, f"{planted}_extra": torch.zeros(3)}, rf"extra +{planted}_extra"),
        ({name: tensor for name, tensor in tensors.items() if name != planted}, rf"missing +{planted}"),
        ({**tensors, transposed: tensors[transposed].T.contiguous()}, transposed),
    ):
        save_file(change, tmp_path / "model.safetensors")
        with pytest.raises(WeightsError, match=message):
            vitkit.load(tmp_path)


@pytest.mark.parametrize("family", ["DINOv2 with registers", "DINOv3"])
def test_missing_registers_are_refused_by_name(family: str, tmp_path: Path):
    """Without them, the other tensors are a model, too; config.json has their number."""
    save(family, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["embeddings.register_tokens"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"lacks embeddings\.register_tokens"):
        vitkit.load(tmp_path)


@pytest.mark.parametrize("family", ["DINOv2", "MAE", "DeiT", "I-JEPA"])
def test_registers_in_a_model_whose_type_has_none_are_refused(family: str, tmp_path: Path):
    save(family, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "embeddings.register_tokens": torch.zeros(1, 4, 32)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"extra +embeddings.register_tokens"):
        vitkit.load(tmp_path)


@pytest.mark.parametrize("family", ["DINOv2", "DINOv2 with registers, classifier", "DINOv3", "DeiT", "I-JEPA"])
def test_the_names_tell_the_family_without_a_config(family: str, tmp_path: Path):
    save(family, tmp_path)
    ours = vitkit.load(tmp_path)
    (tmp_path / "config.json").unlink()
    again = vitkit.load(tmp_path, heads=2)
    images = images_for(ours)
    if family == "DINOv3":  # nothing in it tells the image size
        again.resize(32)
    torch.testing.assert_close(again(images), ours(images), **CLOSE)


@pytest.mark.parametrize("family", ["DINOv2", "DINOv2 with registers", "DINOv3"])
def test_the_mask_token_is_left_out_with_a_message(family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    model = build(family)
    torch.nn.init.ones_(model.embeddings.mask_token)
    model.save_pretrained(tmp_path / "theirs")
    with caplog.at_level(logging.WARNING):
        ours = vitkit.load(tmp_path / "theirs")
        assert "embeddings.mask_token is left out" in caplog.text
        vitkit.save(ours, tmp_path / "ours", format="hf")
    assert "mask_token: only masked pre-training uses it, and zeros are written" in caplog.text
    assert not load_file(tmp_path / "ours" / "model.safetensors")["embeddings.mask_token"].any()


def test_maes_decoder_is_left_out_with_a_message(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    kind = transformers.ViTMAEForPreTraining
    theirs = kind(kind.config_class(**SIZE, **MLP, **DECODER, mask_ratio=0.0)).eval()
    theirs.save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        ours = vitkit.load(tmp_path)
    assert "of MAE's decoder left out (decoder.* …)" in caplog.text
    images = images_for(ours)
    _, seen = ours(images, capture=("encoded",))
    torch.testing.assert_close(seen["encoded"], features(theirs.vit, images)[1], **CLOSE)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "decoder.unknown": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"extra +decoder.unknown"):
        vitkit.load(tmp_path)


@pytest.mark.parametrize("family", ["DINOv2", "DINOv2 with registers", "DeiT"])
def test_transformers_reads_a_new_head_on_these_weights(family: str, tmp_path: Path):
    """Their classifiers read more or fewer features than a head of vitkit; the logits are the same."""
    save(family, tmp_path / "theirs")
    ours = vitkit.load(tmp_path / "theirs", classes=3)
    torch.nn.init.normal_(ours.head.logits.weight)
    torch.nn.init.normal_(ours.head.logits.bias)
    vitkit.save(ours, tmp_path / "ours", format="hf")
    kind = getattr(transformers, json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"][0])
    theirs, report = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    images = images_for(ours)
    torch.testing.assert_close(theirs.eval()(images).logits, ours(images), **CLOSE)
    torch.testing.assert_close(vitkit.load(tmp_path / "ours")(images), ours(images), **CLOSE)


def test_what_transformers_has_no_class_for_is_refused_by_name(tmp_path: Path):
    save("DINOv3", tmp_path / "theirs")
    with pytest.raises(WeightsError, match="the hf format does not support"):
        vitkit.save(vitkit.load(tmp_path / "theirs", classes=3), tmp_path / "ours", format="hf")
    save("DINOv2", tmp_path / "dinov2")
    with pytest.raises(WeightsError, match="positions for images that are not square"):
        vitkit.save(vitkit.load(tmp_path / "dinov2", image=(16, 40)), tmp_path / "ours", format="hf")


def test_a_gate_other_than_silu_is_refused(tmp_path: Path):
    save("DINOv3 with SwiGLU", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu"}))
    with pytest.raises(WeightsError, match="gates its MLP by 'gelu'"):
        vitkit.load(tmp_path)


@ONE_OF_EACH
def test_weights_without_a_processor_have_the_published_normalisation(family: str, tmp_path: Path):
    save(family, tmp_path)
    preprocessing = vitkit.load(tmp_path).metadata.preprocessing
    assert preprocessing.mean == (0.485, 0.456, 0.406)
    assert preprocessing.std == (0.229, 0.224, 0.225)
    assert "as published" in preprocessing.origin
