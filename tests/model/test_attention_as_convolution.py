"""Cordonnier et al. (2020), Theorem 1: weights by their formula make positional attention a convolution."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.signal
import torch

from vitkit.model.offset_positions import Quadratic
from vitkit.model.positional_attention import PositionalAttention, as_convolution

GRID, WIDTH = (9, 11), 4


def interior_error(kernel_side: int, sharpness: float) -> float:
    """The largest difference to scipy's correlation over places whose whole neighbourhood lies in the image."""
    generator = torch.Generator().manual_seed(0)
    attention = PositionalAttention(width=WIDTH, heads=kernel_side**2).double()
    positions = Quadratic(grid=GRID, heads=kernel_side**2).double()
    kernel = torch.randn(WIDTH, WIDTH, kernel_side, kernel_side, generator=generator, dtype=torch.float64)
    bias = torch.randn(WIDTH, generator=generator, dtype=torch.float64)
    as_convolution(attention, positions, kernel, bias, sharpness=sharpness)
    tokens = torch.randn(1, GRID[0] * GRID[1], WIDTH, generator=generator, dtype=torch.float64)
    ours = attention(tokens, positions)[0].T.unflatten(1, GRID).detach().numpy()
    image, weights = tokens[0].T.unflatten(1, GRID).numpy(), kernel.numpy()
    theirs = np.array(
        [
            sum(scipy.signal.correlate2d(image[i], weights[o, i], mode="valid") for i in range(WIDTH))
            for o in range(WIDTH)
        ]
    )
    edge = kernel_side // 2
    inside = ours[:, edge:-edge, edge:-edge]
    return float(np.abs(inside - theirs - bias.numpy()[:, None, None]).max())


@pytest.mark.parametrize("kernel_side", [3, 5])
def test_a_head_for_each_place_of_a_kernel_is_that_convolution_to_float64_rounding(kernel_side: int):
    # exp(-alpha) of the nearest neighbours' weight is below float64's epsilon at alpha = 40; what is left is the
    # rounding of sums of up to 100 products
    assert interior_error(kernel_side, sharpness=40) < 1e-13


@pytest.mark.parametrize("kernel_side", [3, 5])
def test_the_error_falls_as_the_weight_of_the_neighbours(kernel_side: int):
    errors = [interior_error(kernel_side, sharpness) for sharpness in (5, 10, 15, 20)]
    falls = np.diff(np.log(errors))
    np.testing.assert_allclose(falls, -5, atol=0.05)  # the error is proportional to exp(-alpha)


def test_at_the_edge_attention_differs_from_zero_padding():
    """Softmax cannot attend outside the image: the nearest token inside takes the weight."""
    positions = Quadratic(grid=(1, 4), heads=1).double()
    with torch.no_grad():
        positions.centres.copy_(torch.tensor([[0.0, 1.0]]))
        positions.sharpness.fill_(10.0)
    weights = positions().softmax(-1)[0]
    torch.testing.assert_close(weights, torch.eye(4, dtype=torch.float64)[[1, 2, 3, 3]])
