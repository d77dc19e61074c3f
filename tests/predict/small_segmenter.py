"""A small segmentation model whose masks differ from image to image."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import torch

import vitkit
from tests.model.kinds import randomise
from vitkit.data.preprocessing import Preprocessing
from vitkit.model.segmenter import Segmenter

CLASSES = ("sky", "road", "car", "tree")
PALETTE = ((128, 180, 230), (128, 64, 128), (200, 30, 60), (40, 140, 40))


def small_segmenter(trained_size: tuple[int, int] | None = None, **preprocessing: Any) -> Segmenter:
    """Return a model of 32 x 32 images with patches of 4 pixels."""
    model = copy.deepcopy(_varied_model())
    provenance = {"task": "segment", "palette": [list(colour) for colour in PALETTE]}
    if trained_size is not None:
        provenance["trained_size"] = list(trained_size)
    options = {"resize": "squash", "interpolation": "bilinear", **preprocessing}
    model.metadata = replace(
        model.metadata, labels=CLASSES, preprocessing=Preprocessing(**options), provenance=provenance
    )
    return model


@cache
def _varied_model() -> Segmenter:
    torch.manual_seed(0)
    model = vitkit.create("mu/4+linear", classes=len(CLASSES), image=32)
    assert isinstance(model, Segmenter)
    randomise(model).eval()
    images = torch.nn.functional.interpolate(torch.rand(256, 3, 8, 8) * 2 - 1, (32, 32), mode="bicubic")
    images[::2] = (images[::2] - 1) / 2  # dark ones
    with torch.no_grad():
        _, seen = model(images, capture=("encoded",))
        patches = seen["encoded"][:, -64:].flatten(0, 1)
        model.head.norm.running_mean.copy_(patches.mean(0))
        model.head.norm.running_var.copy_(patches.var(0))
        torch.nn.init.normal_(model.head.logits.weight)
        torch.nn.init.zeros_(model.head.logits.bias)
    return model
