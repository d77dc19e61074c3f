"""Weights for images with another number of channels: grey images, or many bands, from weights for RGB.

Only the first layer depends on the channels. Its weights are summed over the colours for one channel, and repeated for
more, as in timm's `adapt_input_conv`; unlike there, the normalisation of each colour goes into the sum.

Shapes: C channels of the weights, N of the images, D outputs of the first layer, P the side of its patch or kernel.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitkit.errors import ConfigError
from vitkit.model.build import Model, build, transformer_of
from vitkit.model.config import ModelConfig, ViTConfig
from vitkit.model.igpt_config import IGPTConfig
from vitkit.model.segmenter_config import SegmenterConfig, with_backbone_options


def adapt_channels(model: Model, channels: int) -> tuple[Model, str]:
    """Return a model for `channels` channels and a sentence that says what was done with the weights.

    One channel: a grey image has the same logits as when its grey is given as every colour. The standardised stem of a
    hybrid or a ResNet has no such weights; there, the sum is an approximation.
    """
    if isinstance(model.config, IGPTConfig):
        raise ConfigError(
            f"{model.kind} has a palette of {model.config.channels} channels, which other channels have no place in",
            try_=f"channels = {model.config.channels}, or weights = none",
        )
    before, state = model.config.channels, dict(model.state_dict())
    layer = _first_layer(model)
    weight = state[f"{layer}.weight"]
    patch = (len(weight), before, -1)  # (D, C, P·P)
    adapted = build(_adapted_config(model, channels))
    preprocessing = model.metadata.preprocessing
    mean, std = (_for_channels(values, before) for values in (preprocessing.mean, preprocessing.std))
    if channels == 1:
        grey_mean, grey_std = float(mean.mean()), float(std.mean())
        scaled = weight.double().reshape(patch) / std[:, None]  # of pixels on 0 … 1
        kernel = grey_std * scaled.sum(1, keepdim=True)
        if f"{layer}.bias" in adapted.state_dict():
            # the mean of a colour is not the grey mean: a constant, which the bias takes
            shift = (scaled.sum(2) * (grey_mean - mean)).sum(1)
            state[f"{layer}.bias"] = (state.get(f"{layer}.bias", torch.zeros(())).double() + shift).to(weight.dtype)
        mean, std = mean.mean(0, keepdim=True), std.mean(0, keepdim=True)
        done = "summed over the channels"
    else:
        source = torch.arange(channels) % before
        kernel = weight.double().reshape(patch)[:, source] * before / channels
        mean, std = mean[source], std[source]
        done = f"repeated over the channels and scaled by {before}/{channels}"
    shape = adapted.state_dict()[f"{layer}.weight"].shape
    state[f"{layer}.weight"] = kernel.to(weight.dtype).reshape(shape)
    adapted.load_state_dict(state)
    adapted.metadata = replace(
        model.metadata,
        preprocessing=replace(preprocessing, mean=tuple(mean.tolist()), std=tuple(std.tolist())),
    )
    noun = "channel" if channels == 1 else "channels"
    return adapted.train(model.training), f"{before} → {channels} {noun}, the first weights {done}" + _accuracy(
        model, channels
    )


def _adapted_config(model: Model, channels: int) -> ModelConfig:
    """Return the config for `channels` channels; a patch embedding without bias gets one where grey images need it."""
    config = model.config
    vit = config.backbone if isinstance(config, SegmenterConfig) else config
    biased = channels == 1 and isinstance(vit, ViTConfig) and vit.stem is None
    options: dict[str, Any] = {"channels": channels, **({"patch_bias": True} if biased else {})}
    return with_backbone_options(config, options) if isinstance(config, SegmenterConfig) else replace(config, **options)


def _first_layer(model: Model) -> str:
    vit = transformer_of(model)
    if vit is None:
        return "body.root"
    backbone = "" if vit is model else "backbone."
    return backbone + ("stem.root" if vit.config.stem else "patches.project")


def _accuracy(model: Model, channels: int) -> str:
    if _first_layer(model).endswith("patches.project") or channels != 1:
        return ""
    return " (approximate: they are standardised; without channels = 1, grey images are read as RGB, which is exact)"


def _for_channels(values: tuple[float, ...], channels: int) -> Tensor:
    """Return the values in float64; if their number is not that of the channels, their average for each."""
    if len(values) != channels:
        values = (sum(values) / len(values),) * channels
    return torch.tensor(values, dtype=torch.float64)
