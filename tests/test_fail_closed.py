"""Fast paths, formats, the cost calculator and analyses decline what they do not know, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitkit
from tests.model.kinds import images_for, make
from vitkit.compute import fused_vit, int8
from vitkit.compute.inference import check_precision, for_inference
from vitkit.cost import COUNTED, cost
from vitkit.errors import VitkitError
from vitkit.inspect.relevance import relevance
from vitkit.kernels.fuse import FUSIBLE, FusedBlock, fuse
from vitkit.model.allow_list import AllowList
from vitkit.model.config import ResNetConfig, ViTConfig
from vitkit.model.conv_config import ConvConfig
from vitkit.model.encoder import Block
from vitkit.model.igpt_config import IGPTConfig
from vitkit.model.segmenter_config import SegmenterConfig
from vitkit.model.spatial_attention import SpatialAttention
from vitkit.model.vit import VisionTransformer


@dataclass(frozen=True, kw_only=True)
class NewConfig(ViTConfig):
    """A config as it would be the day after somebody has added a gate per channel."""

    channel_gate: float = 1e-5


class ChannelGate(nn.Module):
    """A child that nobody has heard of."""

    def __init__(self, width: int):
        super().__init__()
        self.scale = nn.Parameter(torch.full((width,), 3.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def model_with_new_option() -> VisionTransformer:
    model = make("token")
    model.config = NewConfig(**{field.name: getattr(model.config, field.name) for field in fields(model.config)})
    return model


class ScaledBlock(Block):
    """A block that uses the child."""

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        return super().forward(self.channel_gate(x), *rest)


def model_with_new_child() -> VisionTransformer:
    model = make("token")
    model.encoder.blocks[0].channel_gate = ChannelGate(model.config.width)
    return model


def model_with_new_block() -> VisionTransformer:
    model = model_with_new_child()
    model.encoder.blocks[0].__class__ = ScaledBlock
    return model


def fused_training(model: VisionTransformer) -> str | None:
    return fuse(model)


def fused_inference(model: VisionTransformer) -> str | None:
    return fused_vit.reason_to_decline(model)


def int8_inference(model: VisionTransformer) -> str | None:
    return int8.reason_to_decline(model)


def relevance_maps(model: VisionTransformer) -> str | None:
    return _error(lambda: relevance(model, images_for(model)))


def cost_calculator(model: VisionTransformer) -> str | None:
    return _error(lambda: cost(model.config))


def writer(format: str, name: str) -> Callable[..., str | None]:
    def write(model: VisionTransformer, folder: Path = Path()) -> str | None:
        return _error(lambda: vitkit.save(model, folder / name, format=format))

    write.__name__ = f"{format}_format"
    return write


def _error(action: Callable[[], Any]) -> str | None:
    try:
        action()
    except VitkitError as error:
        return str(error)
    return None


FORMATS = [writer("google", "out.npz"), writer("timm", "out"), writer("hf", "out")]
CONSUMERS = [fused_training, fused_inference, int8_inference, relevance_maps, cost_calculator]


@pytest.mark.parametrize("consumer", CONSUMERS, ids=lambda one: one.__name__)
def test_an_option_that_a_consumer_does_not_know_is_declined_by_name(consumer: Callable[..., str | None]):
    assert consumer(make("token")) is None
    reason = consumer(model_with_new_option())
    assert reason is not None
    assert "channel_gate" in reason


@pytest.mark.parametrize("consumer", FORMATS, ids=lambda one: one.__name__)
def test_an_option_that_a_format_cannot_hold_is_declined_by_name(consumer: Callable[..., str | None], tmp_path: Path):
    model = vitkit.create("Ti/16", image=32, classes=10)
    assert consumer(model, tmp_path) is None
    model.config = NewConfig(**{field.name: getattr(model.config, field.name) for field in fields(model.config)})
    reason = consumer(model, tmp_path / "new")
    assert reason is not None
    assert "channel_gate" in reason
    assert not (tmp_path / "new").exists() or not any((tmp_path / "new").iterdir())


@pytest.mark.parametrize("consumer", [fused_training, fused_inference, int8_inference, relevance_maps])
def test_a_child_that_a_consumer_does_not_know_is_declined_by_name(consumer: Callable[..., str | None]):
    reason = consumer(model_with_new_child())
    assert reason is not None
    assert "channel_gate" in reason


@pytest.mark.parametrize("build", [model_with_new_option, model_with_new_child, model_with_new_block])
def test_bf16_inference_of_an_unknown_model_is_that_of_the_plain_model(build: Callable[[], VisionTransformer]):
    model = build()
    images = images_for(model)
    with torch.inference_mode():
        exact = model(images)
        computed = for_inference(model, "bf16")
        assert not isinstance(computed, fused_vit.FusedViT)
        assert (computed(images) - exact).norm() < 0.05 * exact.norm()  # bf16 rounds to 2^-8, a few layers deep
    with pytest.raises(VitkitError, match=r"channel_gate|ScaledBlock"):
        check_precision(model, torch.device("cuda", 0), "fp8")


def test_blocks_that_fusing_knows_are_fused_beside_one_that_it_does_not():
    model = model_with_new_block()
    images = images_for(model)
    exact = model(images)
    fuse(model)
    assert [isinstance(block, FusedBlock) for block in model.encoder.blocks] == [False, True]
    torch.testing.assert_close(model(images), exact)


@pytest.mark.parametrize("format", ["google", "timm", "hf"])
def test_a_format_declines_attention_in_a_resnet_by_name(format: str, tmp_path: Path):
    reason = writer(format, "out.npz")(make("bottleneck attention"), tmp_path)
    assert reason is not None
    assert "attention" in reason or "ResNet" in reason
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("known", [FUSIBLE, fused_vit.SUPPORTED, int8.SUPPORTED, COUNTED], ids=lambda one: one.consumer)
def test_a_list_names_only_options_that_exist(known: AllowList):
    for kind, options in known.options.items():
        assert kind in (ViTConfig, ResNetConfig, ConvConfig, SpatialAttention, IGPTConfig, SegmenterConfig)
        assert set(options) == {field.name for field in fields(kind)}


def test_a_value_that_is_not_supported_is_declined_with_the_value():
    reason = fused_vit.reason_to_decline(make("post-norm"))
    assert reason == "the fused forward pass does not support norm = 'post'"
    assert fused_vit.reason_to_decline(make("ResNet")) == (
        "the fused forward pass is for ViTs, and this model is a ResNet"
    )
