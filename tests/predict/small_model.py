"""A small model of coloured pictures with names, real pictures in many sizes, and pictures of every odd kind."""

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
from tests.data.images import encode, npy, oriented, scene
from tests.model.kinds import randomise
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.sources.open import open_data
from vitkit.model.build import Model

LABELS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")


def colour_model(**preprocessing: Any) -> Model:
    """Answers that differ from picture to picture, for a 32 x 32 view of it."""
    model = copy.deepcopy(_spread())
    model.metadata = replace(model.metadata, labels=LABELS, preprocessing=Preprocessing(**preprocessing))
    return model


@cache
def _spread() -> Model:
    torch.manual_seed(0)
    model = randomise(vitkit.create("mu/4", classes=len(LABELS), image=32)).eval()
    # random weights answer every picture alike; a head that is blind to what all have in common does not
    images = torch.nn.functional.interpolate(torch.rand(256, 3, 8, 8) * 2 - 1, (32, 32), mode="bicubic")
    with torch.no_grad():
        _, seen = model(images, capture=("representation",))
        common, spread = seen["representation"].mean(0), seen["representation"].std(0) + 1e-3
        weight = torch.randn(len(LABELS), len(common)) / spread / len(common) ** 0.5 * 2
        model.head.logits.weight.copy_(weight)
        model.head.logits.bias.copy_(-weight @ common)
    return model


def odd_pictures() -> dict[str, bytes]:
    """What breaks other tools: turned, deep, in four inks, see-through, long and thin."""
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


def real_pictures(folder: Path, count: int) -> list[Path]:
    """Pictures inside the package, coloured and enlarged to odd sizes, as files."""
    split = open_data("fashion").splits["test"]
    paths = []
    for place, index in enumerate(np.linspace(0, len(split) - 1, count).astype(int)):
        grey = np.asarray(split.read(int(index)))[..., 0]
        coloured = np.dstack([grey, np.roll(grey, place % 7, 0), np.roll(grey, place % 5, 1)])
        picture = Image.fromarray(coloured).resize((28 + place % 23, 28 + place % 31), Image.Resampling.BICUBIC)
        paths.append(folder / f"{place:03d}.{'jpg' if place % 2 else 'png'}")
        picture.save(paths[-1])
    return paths
