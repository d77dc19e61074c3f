"""Attention in ResNets against plain NumPy loops over positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.model import local_attention
from vitkit.model.augmented_conv import AugmentedConv
from vitkit.model.axial_attention import AxialAttention
from vitkit.model.bottleneck_attention import BottleneckAttention
from vitkit.model.conv_config import ConvConfig
from vitkit.model.feature_map_attention import FeatureMapAttention
from vitkit.model.local_attention import LocalAttention
from vitkit.model.resnet import StandardisedConv

Array = NDArray[np.float64]
H, W, C, HEADS = 5, 7, 16, 2  # an odd map: pooling has a lone last row and column


def run(layer: FeatureMapAttention, x: Tensor) -> tuple[Array, dict[str, Array]]:
    seen: dict[str, Tensor | None] = {f"unit/{name}": None for name in layer.captures}
    y = layer(x, seen, "unit")
    return y.detach().numpy(), {name: value.detach().numpy() for name, value in seen.items() if value is not None}


def randomised(layer: FeatureMapAttention) -> tuple[FeatureMapAttention, dict[str, Array], Tensor]:
    torch.manual_seed(0)
    layer = layer.double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)
    return layer, {name: value.numpy() for name, value in layer.state_dict().items()}, torch.randn(2, C, H, W).double()


def softmax(scores: Array) -> Array:
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum()


def pool_2x2(x: Array) -> Array:
    """The mean of the pixels that there are in each 2x2 window."""
    c, h, w = x.shape
    out = np.zeros((c, -(-h // 2), -(-w // 2)))
    for i in range(out.shape[1]):
        for j in range(out.shape[2]):
            out[:, i, j] = x[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean((1, 2))
    return out


def full_attention(x: Array, weights: dict[str, Array], key: int, value: int) -> tuple[Array, Array]:
    """Attention between all pixels of one image (C, h, w), with r for offsets in rows and in columns (Bello, eq. 3)."""
    _, h, w = x.shape
    d, dv = key // HEADS, value // HEADS
    out, seen = np.zeros((value, h, w)), np.zeros((HEADS, h * w, h * w))
    project = weights["qkv.weight"]
    rows, columns = weights["positions.rows"], weights["positions.columns"]
    for head in range(HEADS):
        query = project[head * d :][:d]
        keys = project[key + head * d :][:d]
        values = project[2 * key + head * dv :][:dv]
        for i in range(h):
            for j in range(w):
                q = query @ x[:, i, j]
                scores = np.array(
                    [
                        q @ (keys @ x[:, a, b] + rows[a - i + h - 1] + columns[b - j + w - 1]) / np.sqrt(d)
                        for a in range(h)
                        for b in range(w)
                    ]
                )
                seen[head, i * w + j] = softmax(scores)
                for a in range(h):
                    for b in range(w):
                        weight = seen[head, i * w + j, a * w + b]
                        out[head * dv : (head + 1) * dv, i, j] += weight * (values @ x[:, a, b])
    return out, seen


@pytest.mark.parametrize("stride", [1, 2])
def test_bottleneck_attention_is_a_loop_over_positions(stride: int):
    layer, weights, x = randomised(BottleneckAttention(width=C, heads=HEADS, grid=(H, W), stride=stride))
    ours, seen = run(layer, x)
    for image in range(len(x)):
        expected, attention = full_attention(x[image].numpy(), weights, C, C)
        expected = pool_2x2(expected) if stride == 2 else expected
        np.testing.assert_allclose(ours[image], expected, atol=1e-10, rtol=0)
        np.testing.assert_allclose(seen["unit/attention"][image], attention, atol=1e-10, rtol=0)


@pytest.mark.parametrize(("stride", "poolings"), [(1, 0), (2, 1), (1, 1), (2, 2)])
def test_an_augmented_convolution_is_a_loop_over_positions(stride: int, poolings: int):
    key, value, config = 6, 4, ConvConfig(layers=())
    convolution = StandardisedConv(config, C, C - value, 3, stride)
    grid = (H, W)
    for _ in range(poolings):
        grid = (-(-grid[0] // 2), -(-grid[1] // 2))
    layer, weights, x = randomised(
        AugmentedConv(convolution, width=C, channels=(key, value), heads=HEADS, grid=grid, poolings=poolings)
    )
    ours, seen = run(layer, x)
    convolved = convolution(x).detach().numpy()  # compared with Flax elsewhere
    for image in range(len(x)):
        pooled = x[image].numpy()
        for _ in range(poolings):
            pooled = pool_3x3(pooled)
        mixed, attention = full_attention(pooled, weights, key, value)
        expected = np.einsum("oi,ihw->ohw", weights["out.weight"], mixed)
        expected = bilinear(expected, convolved.shape[2:])
        np.testing.assert_allclose(ours[image, : C - value], convolved[image], atol=0, rtol=0)
        np.testing.assert_allclose(ours[image, C - value :], expected, atol=1e-10, rtol=0)
        np.testing.assert_allclose(seen["unit/attention"][image], attention, atol=1e-10, rtol=0)


def pool_3x3(x: Array) -> Array:
    """The mean of the pixels that there are in 3x3 windows, two pixels apart, around 0, 2, 4 …"""
    c, h, w = x.shape
    out = np.zeros((c, -(-h // 2), -(-w // 2)))
    for i in range(out.shape[1]):
        for j in range(out.shape[2]):
            window = x[:, max(2 * i - 1, 0) : 2 * i + 2, max(2 * j - 1, 0) : 2 * j + 2]
            out[:, i, j] = window.mean((1, 2))
    return out


def bilinear(x: Array, size: tuple[int, ...]) -> Array:
    """Interpolate with pixel centres at half integers, the border repeated."""
    out = np.zeros((len(x), *size))
    for i in range(size[0]):
        for j in range(size[1]):
            total = np.zeros(len(x))
            places = [(one + 0.5) * old / new - 0.5 for one, old, new in zip((i, j), x.shape[1:], size, strict=True)]
            y, z = (min(max(place, 0), side - 1) for place, side in zip(places, x.shape[1:], strict=True))
            for a in range(x.shape[1]):
                for b in range(x.shape[2]):
                    total += max(1 - abs(y - a), 0) * max(1 - abs(z - b), 0) * x[:, a, b]
            out[:, i, j] = total
    return out


@pytest.mark.parametrize(("stride", "window"), [(1, 3), (2, 5), (1, 9)])
def test_local_attention_is_a_loop_over_positions(stride: int, window: int):
    layer, weights, x = randomised(LocalAttention(width=C, heads=HEADS, grid=(H, W), stride=stride, window=window))
    ours, seen = run(layer, x)
    d, radius = C // HEADS, window // 2
    for image in range(len(x)):
        pixels, expected = x[image].numpy(), np.zeros((C, H, W))
        for head in range(HEADS):
            query, key, value = (weights["qkv.weight"][part * C + head * d :][:d] for part in range(3))
            half = slice(head * d // 2, (head + 1) * d // 2)
            for i in range(H):
                for j in range(W):
                    q = query @ pixels[:, i, j]
                    around = [
                        (a, b)
                        for a in range(max(i - radius, 0), min(i + radius + 1, H))
                        for b in range(max(j - radius, 0), min(j + radius + 1, W))
                    ]
                    scores = []
                    for a, b in around:
                        row = weights["rows"][a - i + radius, half]
                        column = weights["columns"][b - j + radius, half]
                        r = np.concatenate([row, column])
                        scores.append(q @ (key @ pixels[:, a, b] + r) / np.sqrt(d))
                    shares = softmax(np.array(scores))
                    captured = seen["unit/attention"][image, head, i * W + j].reshape(window, window).copy()
                    for share, (a, b) in zip(shares, around, strict=True):
                        expected[head * d : (head + 1) * d, i, j] += share * (value @ pixels[:, a, b])
                        np.testing.assert_allclose(captured[a - i + radius, b - j + radius], share, atol=1e-10)
                        captured[a - i + radius, b - j + radius] = 0
                    assert not captured.any()  # nothing is left outside of the map
        expected = pool_2x2(expected) if stride == 2 else expected
        np.testing.assert_allclose(ours[image], expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize(("stride", "window"), [(1, 3), (2, 5), (1, 9)])
@pytest.mark.parametrize("grid", [(H, W), (1, 1), (2, 7), (9, 3)])
def test_local_attention_between_all_pixels_is_that_of_copied_neighbours(
    stride: int, window: int, grid: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    layer, _, _ = randomised(LocalAttention(width=C, heads=HEADS, grid=grid, stride=stride, window=window))
    x = torch.randn(2, C, *grid, dtype=torch.float64, requires_grad=True)
    results = {}
    for dense in (False, True):
        monkeypatch.setattr(local_attention, "takes_all_pairs", lambda pixels, window, dense=dense: dense)
        out = layer(x, {}, "unit")
        out.square().sum().backward()
        results[dense] = [out.detach(), x.grad, *(parameter.grad for parameter in layer.parameters())]
        x.grad = None
        layer.zero_grad()
    for copied, dense in zip(*results.values(), strict=True):
        torch.testing.assert_close(dense, copied, atol=1e-10, rtol=0)


@pytest.mark.parametrize("stride", [1, 2])
def test_axial_attention_is_a_loop_over_columns_and_then_over_rows(stride: int):
    layer, weights, x = randomised(AxialAttention(width=C, heads=HEADS, grid=(H, W), stride=stride))
    ours, seen = run(layer, x)
    for image in range(len(x)):
        pixels = x[image].numpy()
        columns = np.zeros_like(pixels)
        for j in range(W):
            columns[:, :, j], attention = attend_along_a_line(pixels[:, :, j], weights, "column")
            np.testing.assert_allclose(seen["unit/columns/attention"][image, j], attention, atol=1e-10, rtol=0)
        rows = np.zeros_like(pixels)
        for i in range(H):
            rows[:, i], attention = attend_along_a_line(columns[:, i], weights, "row")
            np.testing.assert_allclose(seen["unit/rows/attention"][image, i], attention, atol=1e-10, rtol=0)
        expected = pool_2x2(rows) if stride == 2 else rows
        np.testing.assert_allclose(ours[image], expected, atol=1e-10, rtol=0)


def attend_along_a_line(line: Array, weights: dict[str, Array], name: str) -> tuple[Array, Array]:
    """Axial-DeepLab's equation 4 for one line of pixels (C, T)."""
    length, d = line.shape[1], C // HEADS
    project = weights[f"{name}.qkv.weight"]
    to_query, to_key, to_value = (weights[f"{name}.positions.{part}"] for part in ("query", "key", "value"))
    out, seen = np.zeros_like(line), np.zeros((HEADS, length, length))
    for head in range(HEADS):
        query = project[head * d // 2 :][: d // 2]
        key = project[C // 2 + head * d // 2 :][: d // 2]
        value = project[C + head * d :][:d]
        for t in range(length):
            q, scores = query @ line[:, t], []
            for s in range(length):
                k, offset = key @ line[:, s], s - t + length - 1
                scores.append((q @ k + q @ to_query[offset] + k @ to_key[offset]) / np.sqrt(d // 2))
            seen[head, t] = softmax(np.array(scores))
            for s in range(length):
                moved = value @ line[:, s] + to_value[s - t + length - 1]
                out[head * d : (head + 1) * d, t] += seen[head, t, s] * moved
    return out, seen
