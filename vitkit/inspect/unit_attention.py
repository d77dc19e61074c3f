"""Attention inside of a ResNet's units: where it goes on the feature map of each unit, and how far.

A map is what the pixels of the feature map get from all of them on average. Maps of units differ in resolution; side by
side, all of them have the finest.

Shapes: B images, L attention layers, H heads, h x w feature map, N = h·w, K pixels of a local window.
"""

import re
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitkit.inspect.attention import AttentionLayer
from vitkit.inspect.distance import AttentionDistance, patch_distances
from vitkit.inspect.inference import as_model_input, at_least_float32, eval_mode
from vitkit.model.feature_map_attention import FeatureMapAttention
from vitkit.model.local_attention import LocalAttention
from vitkit.model.resnet import ResNet

_CAPTURE = re.compile(r"stage(\d+)/unit(\d+)/(?:(rows|columns)/)?attention")


@dataclass(frozen=True)
class UnitAttention(AttentionLayer):
    """One attention layer of a ResNet; `block` is its unit within the stage."""

    stage: int = 0

    @property
    def capture_name(self) -> str:
        axis = f"{self.axis}/" if self.axis else ""
        return f"stage{self.stage}/unit{self.block}/{axis}attention"

    @property
    def number(self) -> str:
        return f"{self.stage}.{self.block}"

    def module(self, model: ResNet) -> FeatureMapAttention:
        layer = model.body.stages[self.stage][self.block].conv2
        assert isinstance(layer, FeatureMapAttention)
        return layer


def unit_layers(model: ResNet) -> list[UnitAttention]:
    """Return the attention layers, stage by stage; none for a ResNet of convolutions alone."""
    found = filter(None, map(_CAPTURE.fullmatch, model.captures))
    groups = (one.groups() for one in found)
    return [UnitAttention(block=int(unit), axis=axis or "", stage=int(stage)) for stage, unit, axis in groups]


def unit_attention(model: ResNet, images: Tensor) -> tuple[NDArray[np.float32], AttentionDistance]:
    """Return the maps (B, L, H, h, w), each summing to 1 before it is enlarged, and the attention distance."""
    layers = unit_layers(model)
    finest = tuple(max(sides) for sides in zip(*(layer.module(model).grid for layer in layers), strict=True))
    maps, distances = [], []
    with eval_mode(model):
        for image in images.split(1):  # one at a time: a local layer at 224 px has 1.2M weights
            names = [layer.capture_name for layer in layers]
            _, seen = model(as_model_input(image, model), capture=names)
            received, far = [], []
            for layer in layers:
                one, pixels = summarise(at_least_float32(seen[layer.capture_name]), layer, model)
                received.append(F.interpolate(one, size=finest, mode="nearest").cpu())
                far.append(pixels.cpu())
            maps.append(torch.stack(received, dim=1))
            distances.append(torch.stack(far, dim=1))
    strides = [pixel_stride(model, layer) for layer in layers]
    uniform = [
        float(patch_distances(layer.module(model).grid, stride).mean())
        for layer, stride in zip(layers, strides, strict=True)
    ]
    per_image = torch.cat(distances).numpy()
    return torch.cat(maps).numpy(), AttentionDistance(tuple(layers), per_image, float(np.mean(uniform)), min(strides))


def pixel_stride(model: ResNet, layer: UnitAttention) -> int:
    """Return the image pixels from one pixel of the layer's map to the next."""
    return round(model.config.image[0] / layer.module(model).grid[0])


def summarise(weights: Tensor, layer: UnitAttention, model: ResNet) -> tuple[Tensor, Tensor]:
    """Return what each pixel receives (B, H, h, w), and the mean distance of each head in pixels (B, H)."""
    module, stride = layer.module(model), pixel_stride(model, layer)
    h, w = module.grid
    if layer.axis:  # (B, lines, H, T, T)
        line = torch.arange(weights.shape[-1], device=weights.device)
        far = (weights * stride * (line - line[:, None]).abs()).sum(-1).mean((1, 3))
        received = weights.mean(3) / weights.shape[1]  # (B, lines, H, T)
        return received.permute(0, 2, 1, 3) if layer.axis == "rows" else received.permute(0, 2, 3, 1), far
    if isinstance(module, LocalAttention):  # (B, H, N, K)
        k = module.window
        to_centre = patch_distances((k, k), stride)[k * k // 2].to(weights)  # (K,)
        columns = weights.flatten(0, 1).transpose(1, 2) / (h * w)  # (B·H, K, N)
        received = F.fold(columns, (h, w), k, padding=k // 2)  # (B·H, 1, h, w)
        return received.unflatten(0, weights.shape[:2]).squeeze(2), (weights * to_centre).sum(-1).mean(-1)
    distances = patch_distances((h, w), stride).to(weights)  # (N, N)
    return weights.mean(2).unflatten(-1, (h, w)), (weights * distances).sum(-1).mean(-1)
