"""A small model with class names, real images in many sizes, and images of every odd kind."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import vitkit
from tests.data.sample_images import encode, npy, oriented, scene
from tests.model.kinds import randomise
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.sources.open import open_data
from vitkit.model.build import Model

LABELS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")


def small_model(**preprocessing: Any) -> Model:
    """Return a model of 32 x 32 images whose predictions differ from image to image."""
    model = copy.deepcopy(_varied_model())
    model.metadata = replace(model.metadata, labels=LABELS, preprocessing=Preprocessing(**preprocessing))
    return model


def rounding(model: Model) -> float:
    """Return a tolerance for probabilities that differ by the order of float32 sums: 16 · eps · √(depth · width)."""
    return 16 * float(np.finfo(np.float32).eps) * (model.config.depth * model.config.width) ** 0.5


@cache
def _varied_model() -> Model:
    torch.manual_seed(0)
    model = randomise(vitkit.create("mu/4", classes=len(LABELS), image=32)).eval()
    # random weights predict the same for every image; a head that ignores what all have in common does not
    images = torch.nn.functional.interpolate(torch.rand(256, 3, 8, 8) * 2 - 1, (32, 32), mode="bicubic")
    with torch.no_grad():
        _, seen = model(images, capture=("representation",))
        common, spread = seen["representation"].mean(0), seen["representation"].std(0) + 1e-3
        weight = torch.randn(len(LABELS), len(common)) / spread / len(common) ** 0.5 * 2
        model.head.logits.weight.copy_(weight)
        model.head.logits.bias.copy_(-weight @ common)
    return model


def odd_images() -> dict[str, bytes]:
    """Return what breaks other tools: rotated, 16-bit, CMYK, transparent, long and thin images."""
    wide = scene(20, 90)
    deep = np.linspace(0, 65535, 30 * 45).reshape(30, 45).astype(np.uint16)
    seethrough = np.dstack([scene(), np.linspace(0, 255, 24 * 40).reshape(24, 40).astype(np.uint8)])
    return {
        "turned.jpg": oriented("JPEG", 6, quality=95),
        "mirrored.png": oriented("PNG", 5),
        "deep.png": encode(Image.fromarray(deep), "PNG"),
        "deep.npy": npy(np.dstack([deep, deep[::-1], deep[:, ::-1]])),
        "inks.jpg": encode(Image.fromarray(scene()).convert("CMYK"), "JPEG"),
        "seethrough.png": encode(seethrough, "PNG"),
        "palette.gif": encode(Image.fromarray(scene()).quantize(16), "GIF"),
        "grey.jpg": encode(Image.fromarray(scene()).convert("L"), "JPEG"),
        "wide.webp": encode(wide, "WEBP", lossless=True),
        "tall.png": encode(np.ascontiguousarray(wide.swapaxes(0, 1)), "PNG"),
        "one_wide.png": encode(scene(50, 1), "PNG"),
        "one_high.png": encode(scene(1, 50), "PNG"),
        "dot.png": encode(scene(1, 1), "PNG"),
        "line.png": encode(scene(2, 600), "PNG"),
    }


def real_images(folder: Path, count: int) -> list[Path]:
    """Write images of the package, coloured and enlarged to odd sizes, and return their paths."""
    split = open_data("fashion").splits["test"]
    paths = []
    for number, index in enumerate(np.linspace(0, len(split) - 1, count).astype(int)):
        grey = np.asarray(split.read(int(index)))[..., 0]
        coloured = np.dstack([grey, np.roll(grey, number % 7, 0), np.roll(grey, number % 5, 1)])
        image = Image.fromarray(coloured).resize((28 + number % 23, 28 + number % 31), Image.Resampling.BICUBIC)
        paths.append(folder / f"{number:03d}.{'jpg' if number % 2 else 'png'}")
        image.save(paths[-1])
    return paths
