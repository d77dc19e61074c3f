"""Where a model looks, as a run's report shows it."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import spearmanr

import vitkit
from vitkit.data.sources.open import open_data
from vitkit.data.transforms import Exact
from vitkit.inspect.looks import looks
from vitkit.inspect.rollout import rollout

TEST = open_data("fashion").splits["test"]


def test_a_picture_glows_where_its_rollout_is_large():
    model = vitkit.create("mu/7", classes=10, image=28, channels=1).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    exact = Exact(image=(28, 28), preprocessing=model.metadata.preprocessing)
    shown = looks(model, TEST)
    assert len(shown) == 8
    for one in shown:
        index = list(TEST.keys).index(one.key)
        weights = rollout(model, exact(TEST.read(index))[None])[0]
        assert one.seen.shape == one.lit.shape == (168, 168, 3)  # six times as large, to have room for the map
        added = (one.lit.astype(int) - (18 + 0.6 * one.seen.mean(axis=2, keepdims=True))).clip(0).sum(axis=2)
        glow = added.reshape(4, 42, 4, 42).mean(axis=(1, 3))
        assert spearmanr(glow.ravel(), weights.ravel()).statistic > 0.6


def test_a_resnet_has_nothing_to_show_here():
    assert looks(vitkit.create("R50x1", classes=10, image=32, channels=1).eval(), TEST.select(np.arange(2))) == []
