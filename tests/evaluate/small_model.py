"""A small model that is fitted to `fashion`, and images to score it on."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache

import numpy as np
import torch

import vitkit
from tests.model.kinds import randomise
from vitkit.data.sources.dataset import Data
from vitkit.data.sources.fashion import CLASSES
from vitkit.data.sources.open import open_data
from vitkit.model.build import Model


def some_fashion(every: int = 5) -> Data:
    data = open_data("fashion")
    return replace(data, splits={"test": data.splits["test"].select(np.arange(0, 1000, every))})


def small_model(classes: tuple[str, ...] = CLASSES) -> Model:
    """Return the model with logits in the order of `classes`, names of fashion's classes or others."""
    model = copy.deepcopy(_fitted())
    order = [CLASSES.index(name) if name in CLASSES else 0 for name in classes]
    with torch.no_grad():
        weight, bias = model.head.logits.weight[order], model.head.logits.bias[order]
        model.replace_head(len(classes))
        model.head.logits.weight.copy_(weight)
        model.head.logits.bias.copy_(bias)
    model.metadata = replace(model.metadata, labels=classes)
    return model.eval()


@cache
def _fitted() -> Model:
    """Return random weights with a head that least squares fitted to a few hundred images."""
    torch.manual_seed(0)
    model = randomise(vitkit.create("mu/4", classes=10, image=28, channels=1)).eval()
    split = open_data("fashion").splits["train"]
    chosen = range(0, len(split), 20)
    names = [split.keys[index].split("/")[1] for index in chosen]
    with torch.no_grad():
        _, seen = model(torch.stack([as_input(split.read(index)) for index in chosen]), capture=("representation",))
        features = torch.cat([seen["representation"], torch.ones(len(names), 1)], 1).double()
        targets = torch.tensor([[10.0 * (name == other) for other in CLASSES] for name in names]).double()
        # a ridge: without it, weights are so large that rounding changes predictions
        solved = torch.linalg.solve(features.T @ features + torch.eye(features.shape[1]), features.T @ targets).float()
        model.head.logits.weight.copy_(solved[:-1].T)
        model.head.logits.bias.copy_(solved[-1])
    return model


def as_input(pixels: np.ndarray) -> torch.Tensor:
    """Convert (28, 28, 1) bytes to (1, 28, 28) on [-1, 1], the preprocessing of an image of the right size."""
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 127.5 - 1
