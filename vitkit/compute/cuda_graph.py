"""CUDA graphs: a forward pass is captured once for a batch size, then replayed.

With one image, launching a model's hundreds of kernels one by one takes several times as long as running them.
"""

import threading
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

Result = TypeVar("Result")

WARM_UPS = 3  # libraries choose kernels and allocate workspaces in their first passes, which a graph must not capture
MAX_GRAPHS = 8  # batch shapes that are captured; each holds memory of its own
STREAMS = 32  # of torch's pool for a device, which it hands out in turn

_stream_users: WeakValueDictionary[tuple[torch.device, int], torch.cuda.CUDAGraph] = WeakValueDictionary()


class CudaGraphModule(nn.Module):
    """A module that captures a graph for each batch shape it meets; the caller owns the output."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.lock = threading.Lock()  # all callers share the captured inputs and outputs
        self.captured: dict[tuple[torch.Size, torch.dtype], tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}

    def forward(self, images: Tensor) -> Tensor:
        # a graph outlives the inference mode of its first caller
        with self.lock, torch.cuda.device(images.device), torch.inference_mode(False), torch.no_grad():
            return self._replay(images)

    def _replay(self, images: Tensor) -> Tensor:
        key = images.shape, images.dtype
        if key not in self.captured:
            if len(self.captured) == MAX_GRAPHS:
                logits: Tensor = self.model(images)
                return logits
            self.captured[key] = self._capture(images)
        graph, inputs, outputs = self.captured[key]
        inputs.copy_(images)
        graph.replay()
        return outputs.clone()

    def _capture(self, images: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        inputs = images.clone()
        stream = capture_stream(images.device)
        stream.wait_stream(torch.cuda.current_stream(images.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self.model(inputs)
        torch.cuda.current_stream(images.device).wait_stream(stream)
        graph, outputs = capture(lambda: self.model(inputs), stream)
        return graph, inputs, outputs


def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a stream to capture on that no living graph was captured on, while there is one.

    When a graph is freed, torch frees the workspace that matrix products on its stream share, though other graphs still
    write to it (pytorch/pytorch#193402).
    """
    for _ in range(STREAMS):
        stream = torch.cuda.Stream(device)
        if (stream.device, stream.cuda_stream) not in _stream_users:
            break
    return stream


def capture(work: Callable[[], Result], stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Capture what `work` launches and return the graph and the tensors that each replay fills."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):  # other threads go on meanwhile
        result = work()
    _stream_users[stream.device, stream.cuda_stream] = graph
    return graph, result
