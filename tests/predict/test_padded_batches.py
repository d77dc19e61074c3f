"""Batches of any size through a model that sees a few sizes only."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tests.model.kinds import images_for, make
from vitkit.predict.engines import SIZES, PaddedBatches


class SizeRecorder(nn.Module):
    """Records the batch sizes that a model is called with."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.sizes: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.sizes.append(len(images))
        logits: Tensor = self.model(images)
        return logits


def test_a_few_sizes_are_seen_at_the_start_and_no_others_later():
    model = make("token")
    recorder = SizeRecorder(model)
    with torch.inference_mode():
        padded = PaddedBatches(recorder, torch.zeros(1, 3, 32, 32))
        assert recorder.sizes == list(SIZES)
        for batch in (1, 2, 8, 9, 64, 71):
            images = images_for(model, batch)
            assert_close(padded(images), model(images), atol=1e-4, rtol=1e-4)
    assert set(recorder.sizes) <= set(SIZES)


def test_what_is_left_of_a_large_batch_is_not_padded_to_the_largest_size():
    model = make("token")
    recorder = SizeRecorder(model)
    with torch.inference_mode():
        padded = PaddedBatches(recorder, torch.zeros(1, 3, 32, 32), (1, 8, 64, 128))
        for batch, sizes in ((128, [128]), (100, [64, 64]), (200, [128, 64, 8])):
            recorder.sizes.clear()
            images = images_for(model, batch)
            assert_close(padded(images), model(images), atol=1e-4, rtol=1e-4)
            assert recorder.sizes == sizes
