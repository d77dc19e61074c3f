"""CUDA graphs: a forward pass recorded once for a batch size, then launched as one. With one picture, launching a
model's hundreds of kernels one by one takes several times as long as running them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

Result = TypeVar("Result")

WARM_UPS = 3  # libraries choose kernels and allocate workspaces in their first passes, which a graph must not record
MOST = 8  # sizes that are recorded; each holds memory of its own
STREAMS = 32  # that torch has for a device, and hands out in turn

_recorded_on: WeakValueDictionary[tuple[torch.device, int], torch.cuda.CUDAGraph] = WeakValueDictionary()


class Graphed(nn.Module):
    """For shapes that come back. What it returns is the caller's."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.lock = threading.Lock()  # one set of pictures and answers serves all callers
        self.recorded: dict[tuple[torch.Size, torch.dtype], tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}

    def forward(self, images: Tensor) -> Tensor:
        # what is recorded outlives the mode of its first caller
        with self.lock, torch.cuda.device(images.device), torch.inference_mode(False), torch.no_grad():
            return self._answer(images)

    def _answer(self, images: Tensor) -> Tensor:
        kind = images.shape, images.dtype
        if kind not in self.recorded:
            if len(self.recorded) == MOST:
                logits: Tensor = self.model(images)
                return logits
            self.recorded[kind] = self._record(images)
        graph, pictures, told = self.recorded[kind]
        pictures.copy_(images)
        graph.replay()
        return told.clone()

    def _record(self, images: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        pictures = images.clone()
        aside = stream_apart(images.device)
        aside.wait_stream(torch.cuda.current_stream(images.device))
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                self.model(pictures)
        torch.cuda.current_stream(images.device).wait_stream(aside)
        graph, told = record(lambda: self.model(pictures), aside)
        return graph, pictures, told


def stream_apart(device: torch.device) -> torch.cuda.Stream:
    """To record on: one that no graph which still lives was recorded on, while there are such. When a graph goes, torch
    frees the memory that matrix products on its stream share, though other graphs still write to it
    (pytorch/pytorch#193402)."""
    for _ in range(STREAMS):
        stream = torch.cuda.Stream(device)
        if (stream.device, stream.cuda_stream) not in _recorded_on:
            break
    return stream


def record(work: Callable[[], Result], aside: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, Result]:
    """What `work` launches, and what comes of it once that is launched; nothing is computed yet."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):  # other threads go on meanwhile
        found = work()
    _recorded_on[aside.device, aside.cuda_stream] = graph
    return graph, found
