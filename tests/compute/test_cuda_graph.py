"""Streams that graphs are captured on, handed out by a stand-in for torch's pool: a few, in turn."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

from vitkit.compute import cuda_graph

GPU = torch.device("cuda", 0)


class FakeGraph:
    """A stand-in for torch.cuda.CUDAGraph and for the context that captures one."""

    def __init__(self, *_: object, **__: object): ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture(autouse=True)
def three_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.cycle(range(3))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(device=device, cuda_stream=next(numbers)))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", FakeGraph)


def captured() -> tuple[object, int]:
    stream = cuda_graph.capture_stream(GPU)
    graph, result = cuda_graph.capture(lambda: 42, stream)
    assert result == 42
    return graph, stream.cuda_stream


def test_living_graphs_have_a_stream_each():
    held = [captured() for _ in range(3)]
    assert sorted(stream for _, stream in held) == [0, 1, 2]


def test_the_stream_of_a_freed_graph_is_used_again():
    held = [captured() for _ in range(3)]
    _, freed = held.pop(1)
    assert captured()[1] == freed


def test_streams_are_shared_when_none_is_free():
    held = [captured() for _ in range(3)]
    assert captured()[1] in {stream for _, stream in held}


def test_another_gpu_has_streams_of_its_own():
    held = [captured() for _ in range(3)]
    assert cuda_graph.capture_stream(torch.device("cuda", 1)).cuda_stream == 0
    del held
