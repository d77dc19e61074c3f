"""Streams that graphs are recorded on, handed out by a stand-in for torch's: a few, in turn."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

from vitkit.compute import cuda_graph

GPU = torch.device("cuda", 0)


class Recording:
    """What torch has as a CUDA cuda_graph, and as the recording of one."""

    def __init__(self, *_: object, **__: object): ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture(autouse=True)
def three_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.cycle(range(3))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(device=device, cuda_stream=next(numbers)))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recording)
    monkeypatch.setattr(torch.cuda, "graph", Recording)


def recorded() -> tuple[object, int]:
    aside = cuda_graph.stream_apart(GPU)
    found, answer = cuda_graph.record(lambda: 42, aside)
    assert answer == 42
    return found, aside.cuda_stream


def test_graphs_that_live_have_a_stream_each():
    held = [recorded() for _ in range(3)]
    assert sorted(stream for _, stream in held) == [0, 1, 2]


def test_a_graph_that_went_leaves_its_stream_to_the_next():
    held = [recorded() for _ in range(3)]
    _, freed = held.pop(1)
    assert recorded()[1] == freed


def test_with_none_left_streams_are_shared():
    held = [recorded() for _ in range(3)]
    assert recorded()[1] in {stream for _, stream in held}


def test_another_gpu_has_streams_of_its_own():
    held = [recorded() for _ in range(3)]
    assert cuda_graph.stream_apart(torch.device("cuda", 1)).cuda_stream == 0
    del held
