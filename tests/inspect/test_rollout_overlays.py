"""Rollout overlays of a report."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import vitkit
from tests.pages.test_inline_images import decode_data_url
from vitkit.data.sources.open import open_data
from vitkit.data.transforms import EvalTransform
from vitkit.inspect.rollout import rollout
from vitkit.inspect.rollout_overlays import rollout_overlays

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


@pytest.mark.parametrize(
    ("name", "options", "pairs"),
    [("R50x1", {"image": 32}, 0), ("iGPT-mu/8", {"causal": True}, 0), ("iGPT-mu/8", {"causal": False}, 2)],
)
def test_a_resnet_and_a_causal_model_have_no_overlays(name: str, options: dict, pairs: int):
    """Rollout of a causal model is bright where pixels come early, whatever the image shows."""
    model = vitkit.create(name, classes=10, channels=1, **options).eval()
    assert len(rollout_overlays(model, TEST.select(np.arange(2)))) == pairs
