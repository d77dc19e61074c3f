"""Compared with the installed transformers: vitkit reads its models, and it reads ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoImageProcessor, ViTConfig, ViTForImageClassification, ViTModel

import vitkit
from tests.model.kinds import images_for, make, randomise
from tests.weights.rounding import ROUNDING
from vitkit.data.preprocessing import Preprocessing
from vitkit.errors import WeightsError


@st.composite
def configurations(draw: st.DrawFn) -> ViTConfig:
    heads, patch = draw(st.integers(1, 4)), draw(st.sampled_from([2, 4, 8]))
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    return ViTConfig(
        hidden_size=heads * draw(st.sampled_from([4, 8])),
        num_attention_heads=heads,
        num_hidden_layers=draw(st.integers(1, 3)),
        intermediate_size=draw(st.integers(4, 40)),
        image_size=[rows * patch, columns * patch] if rows != columns else rows * patch,
        patch_size=patch,
        num_channels=draw(st.integers(1, 4)),
        qkv_bias=draw(st.booleans()),
        hidden_act=draw(st.sampled_from(["gelu", "gelu_new", "gelu_pytorch_tanh"])),
        layer_norm_eps=draw(st.sampled_from([1e-12, 1e-6, 1e-5])),
        num_labels=draw(st.integers(2, 12)),
        initializer_range=0.2,
        attn_implementation="eager",
    )


@given(configurations())
@settings(max_examples=15)
def test_logits_and_attention_equal_those_of_random_transformers_models(tmp_path_factory, config: ViTConfig):
    theirs = randomise(ViTForImageClassification(config).eval())
    folder = tmp_path_factory.mktemp("hf")
    theirs.save_pretrained(folder)
    ours = vitkit.load(folder)
    images = images_for(ours)
    logits, seen = ours(images, capture=("block*/attention",))
    output = theirs(images, output_attentions=True)
    torch.testing.assert_close(logits, output.logits, atol=ROUNDING, rtol=ROUNDING)
    for layer, weights in enumerate(output.attentions):
        torch.testing.assert_close(seen[f"block{layer}/attention"], weights, atol=ROUNDING / 2, rtol=0)


@pytest.mark.parametrize("kind", ["token", "non-square, one channel", "exact GELU"])
def test_transformers_reads_what_we_write(kind: str, tmp_path: Path):
    ours = make(kind)
    vitkit.save(ours, tmp_path, format="hf")
    theirs, report = ViTForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    images = images_for(ours)
    torch.testing.assert_close(theirs.eval()(images).logits, ours(images), atol=ROUNDING, rtol=ROUNDING)


def test_a_bare_model_with_its_pooler_is_the_pretraining_representation(tmp_path: Path):
    config = ViTConfig(
        hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=24, image_size=16, patch_size=8
    )
    theirs = randomise(ViTModel(config).eval())
    theirs.save_pretrained(tmp_path / "theirs")
    ours = vitkit.load(tmp_path / "theirs")
    images = images_for(ours)
    torch.testing.assert_close(ours(images), theirs(images).pooler_output, atol=ROUNDING, rtol=ROUNDING)
    vitkit.save(ours, tmp_path / "ours", format="hf")
    reloaded, report = ViTModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    torch.testing.assert_close(reloaded.eval()(images).pooler_output, ours(images), atol=ROUNDING, rtol=ROUNDING)


def test_labels_are_read_and_written(tmp_path: Path):
    config = ViTConfig(
        hidden_size=16,
        num_attention_heads=2,
        num_hidden_layers=1,
        intermediate_size=24,
        image_size=16,
        patch_size=8,
        id2label={0: "cat", 1: "dog"},
        label2id={"cat": 0, "dog": 1},
    )
    ViTForImageClassification(config).save_pretrained(tmp_path / "theirs")
    ours = vitkit.load(tmp_path / "theirs")
    assert ours.metadata.labels == ("cat", "dog")
    vitkit.save(ours, tmp_path / "ours", format="hf")
    assert ViTForImageClassification.from_pretrained(tmp_path / "ours").config.id2label == {0: "cat", 1: "dog"}


@pytest.mark.parametrize(
    "preprocessing",
    [
        Preprocessing(),
        Preprocessing(crop=0.875, interpolation="bilinear", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4)),
        Preprocessing(resize="squash", interpolation="bilinear"),
    ],
)
def test_preprocessing_round_trips_and_means_the_same_to_transformers(preprocessing: Preprocessing, tmp_path: Path):
    from dataclasses import replace

    import numpy as np
    from PIL import Image

    model = make("token")
    model.metadata = replace(model.metadata, preprocessing=preprocessing)
    vitkit.save(model, tmp_path, format="hf")
    assert vitkit.load(tmp_path).metadata.preprocessing == preprocessing
    processor = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    theirs = processor(image, return_tensors="pt")["pixel_values"][0]
    side = round(32 / preprocessing.crop)
    filter = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}[preprocessing.interpolation]
    resized = np.asarray(image.resize((side, side), filter), dtype=np.float32) / 255
    start = (side - 32) // 2
    cropped = resized[start : start + 32, start : start + 32]
    ours = (cropped - np.float32(preprocessing.mean)) / np.float32(preprocessing.std)
    np.testing.assert_allclose(theirs.permute(1, 2, 0), ours, atol=ROUNDING)


def test_another_architecture_of_transformers_is_refused_by_name(tmp_path: Path):
    vitkit.save(make("token"), tmp_path, format="hf")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "beit"}))
    with pytest.raises(WeightsError, match="is a model of the type beit"):
        vitkit.load(tmp_path)


def test_an_activation_other_than_gelu_is_refused(tmp_path: Path):
    vitkit.save(make("token"), tmp_path, format="hf")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    with pytest.raises(WeightsError, match="uses the activation 'relu'"):
        vitkit.load(tmp_path)
