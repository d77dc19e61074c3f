"""Any batch for a model that meets a few sizes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tests.model.kinds import images_for, make
from vitkit.compute.fixed_batches import SIZES, InSizes


class Met(nn.Module):
    """Remembers the sizes that a model is asked with."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.sizes: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.sizes.append(len(images))
        logits: Tensor = self.model(images)
        return logits


def test_few_sizes_are_met_before_anybody_asks_and_none_after():
    model = make("token")
    met = Met(model)
    with torch.inference_mode():
        quick = InSizes(met, torch.zeros(1, 3, 32, 32))
        assert met.sizes == list(SIZES)
        for batch in (1, 2, 8, 9, 64, 71):
            images = images_for(model, batch)
            assert_close(quick(images), model(images), atol=1e-4, rtol=1e-4)
    assert set(met.sizes) <= set(SIZES)
