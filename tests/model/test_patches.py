from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from vitkit.model.patches import PatchEmbedding, cut

grids = st.tuples(st.integers(1, 4), st.integers(1, 4))


@given(channels=st.integers(1, 5), patch=st.integers(1, 6), grid=grids)
def test_cutting_equals_torch_unfold(channels: int, patch: int, grid: tuple[int, int]):
    image = torch.randn(2, channels, grid[0] * patch, grid[1] * patch)
    theirs = F.unfold(image, patch, stride=patch).transpose(1, 2)
    assert torch.equal(cut(image, patch), theirs)


@given(channels=st.integers(1, 4), patch=st.integers(1, 5), grid=grids)
def test_embedding_equals_a_strided_convolution(channels: int, patch: int, grid: tuple[int, int]):
    embedding = PatchEmbedding(channels=channels, patch=patch, width=7)
    image = torch.randn(2, channels, grid[0] * patch, grid[1] * patch)
    kernel = embedding.project.weight.unflatten(1, (channels, patch, patch))
    theirs = F.conv2d(image, kernel, embedding.project.bias, stride=patch).flatten(2).transpose(1, 2)
    torch.testing.assert_close(embedding(image), theirs, atol=1e-5, rtol=1e-5)


def test_channels_last_images_are_cut_alike():
    image = torch.randn(2, 3, 16, 8)
    assert torch.equal(cut(image.to(memory_format=torch.channels_last), 4), cut(image, 4))
