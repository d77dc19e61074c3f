"""ImageGPT's files against transformers: what it writes we read, what we write it reads, and others are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import ImageGPTConfig, ImageGPTForCausalImageModeling, ImageGPTForImageClassification, ImageGPTModel

import vitkit
from tests.model.kinds import randomise
from vitkit.errors import WeightsError
from vitkit.model.igpt import ImageGPT

SIZES = {"vocab_size": 9, "n_positions": 16, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_inner": 40}


def written(folder: Path, kind: type = ImageGPTForCausalImageModeling, **options: object) -> torch.nn.Module:
    """Write a small model of transformers with random weights, biases and norms too, and return it."""
    torch.manual_seed(1)
    theirs = kind(ImageGPTConfig(**SIZES, **options)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    theirs.save_pretrained(folder)
    clusters = torch.rand(8, 3) * 2 - 1
    record = {"image_processor_type": "ImageGPTImageProcessor", "clusters": clusters.tolist(), "do_normalize": True}
    (folder / "preprocessor_config.json").write_text(json.dumps(record))
    return theirs


@pytest.mark.parametrize("kind", [ImageGPTForCausalImageModeling, ImageGPTModel])
def test_transformers_files_give_its_logits(kind: type, tmp_path: Path):
    theirs = written(tmp_path, kind)
    model = vitkit.load(tmp_path)
    assert isinstance(model, ImageGPT)
    tokens = torch.randint(8, (2, 16))
    images = model.colours_of(tokens)
    assert torch.equal(model.quantise(images), tokens)  # the clusters are the palette
    start = torch.full((2, 1), 8)
    with torch.no_grad():
        body = getattr(theirs, "transformer", theirs)
        hidden = body(torch.cat([start, tokens[:, :-1]], 1)).last_hidden_state
        _, seen = model(images, capture=("encoded",))
        torch.testing.assert_close(seen["encoded"], hidden, atol=1e-5, rtol=0)
        if kind is ImageGPTForCausalImageModeling:
            torch.testing.assert_close(model.next_colour(seen["encoded"]), theirs.lm_head(hidden), atol=1e-5, rtol=0)


def test_transformers_reads_what_we_write(tmp_path: Path):
    torch.manual_seed(0)
    model = randomise(vitkit.create("iGPT-mu/4", classes=0, colours=8).eval())
    vitkit.save(model, tmp_path / "hf", format="hf")
    theirs = ImageGPTForCausalImageModeling.from_pretrained(tmp_path / "hf").eval()
    tokens = torch.randint(8, (2, 16))
    with torch.no_grad():
        expected = theirs(torch.cat([torch.full((2, 1), 8), tokens[:, :-1]], 1)).logits
        torch.testing.assert_close(model.next_colour(model.encode(model.embed(tokens))), expected, atol=1e-5, rtol=0)
    again = vitkit.load(tmp_path / "hf")
    assert again.config == model.config
    assert again.metadata.preprocessing == model.metadata.preprocessing
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation_function": "gelu"}, "another activation_function"),
        ({"scale_attn_by_inverse_layer_idx": True}, "another scale_attn_by_inverse_layer_idx"),
    ],
)
def test_other_arithmetic_is_refused(options: dict[str, object], message: str, tmp_path: Path):
    written(tmp_path, **options)
    with pytest.raises(WeightsError, match=message):
        vitkit.load(tmp_path)


def test_the_causal_masks_of_older_files_are_left_out_with_a_message(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    theirs = written(tmp_path)
    masks = {f"transformer.h.{layer}.attn.bias": torch.ones(1, 1, 16, 16) for layer in range(2)}
    (tmp_path / "model.safetensors").unlink()
    torch.save({**theirs.state_dict(), **masks}, tmp_path / "pytorch_model.bin")
    model = vitkit.load(tmp_path)
    assert "causal masks are left out" in caplog.text
    assert torch.equal(model.next_colour.weight, theirs.lm_head.weight)


def test_files_without_palette_and_classifiers_are_refused(tmp_path: Path):
    written(tmp_path / "one")
    (tmp_path / "one/preprocessor_config.json").unlink()
    with pytest.raises(WeightsError, match="has no palette"):
        vitkit.load(tmp_path / "one")
    written(tmp_path / "two", ImageGPTForImageClassification)
    with pytest.raises(WeightsError, match="start of the sequence"):
        vitkit.load(tmp_path / "two")


@pytest.mark.parametrize("options", [{"causal": False, "classes": 0}, {"classes": 3}, {"channels": 1, "classes": 0}])
@pytest.mark.parametrize("format", ["hf", "timm", "google"])
def test_what_a_format_cannot_hold_is_refused_and_ours_holds_it(
    options: dict[str, object], format: str, tmp_path: Path
):
    model = randomise(vitkit.create("iGPT-mu/4", colours=8, **options).eval())
    with pytest.raises(WeightsError, match="cannot hold this model"):
        vitkit.save(model, tmp_path / ("out.npz" if format == "google" else "out"), format=format)
    vitkit.save(model, tmp_path / "own")
    again = vitkit.load(tmp_path / "own")
    images = torch.randn(2, model.config.channels, 4, 4)
    with torch.no_grad():
        assert torch.equal(again(images), model(images))
    assert not again.embedding.palette.requires_grad
