"""Rollout overlays of a report."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import spearmanr

import vitkit
from tests.pages.test_inline_images import decode_data_url
from vitkit.data.sources.open import open_data
from vitkit.data.transforms import EvalTransform
from vitkit.inspect.inspection import rollout_overlays
from vitkit.inspect.rollout import rollout

TEST = open_data("fashion").splits["test"]


def test_an_overlay_is_bright_where_rollout_is_large():
    model = vitkit.create("mu/7", classes=10, image=28, channels=1).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    transform = EvalTransform(image=(28, 28), preprocessing=model.metadata.preprocessing)
    pairs = rollout_overlays(model, TEST)
    assert len(pairs) == 8
    for pair in pairs:
        index = list(TEST.keys).index(pair.key)
        image, overlay = decode_data_url(pair.above.data_url), decode_data_url(pair.below.data_url)
        weights = rollout(model, transform(TEST.read(index))[None])[0]
        assert image.shape == overlay.shape == (168, 168, 3)  # six times as large, to have room for the heatmap
        added = (overlay.astype(int) - (18 + 0.6 * image.mean(axis=2, keepdims=True))).clip(0).sum(axis=2)
        brightness = added.reshape(4, 42, 4, 42).mean(axis=(1, 3))
        assert spearmanr(brightness.ravel(), weights.ravel()).statistic > 0.6


def test_a_resnet_has_no_overlays():
    assert (
        rollout_overlays(vitkit.create("R50x1", classes=10, image=32, channels=1).eval(), TEST.select(np.arange(2)))
        == []
    )
