"""Prefetching to a GPU: a batch is copied on a stream of its own while the previous step computes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vitkit.data.batch import Batch


class Prefetcher:
    """Copies batches to the device into two alternating buffers, however far the host runs ahead."""

    def __init__(self, device: torch.device):
        self.device = device
        self.copy_stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.buffers: dict[int, Tensor] = {}
        self.released: dict[int, torch.cuda.Event] = {}  # when all readers of a buffer have been launched
        self.count = 0

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch on the device; its images are valid for two calls and for work launched in between."""
        if self.copy_stream is None or batch.images.device == self.device:
            return batch.to(self.device)
        compute_stream = torch.cuda.current_stream(self.device)
        index, previous = self.count % 2, (self.count - 1) % 2
        self.released[previous] = compute_stream.record_event()  # all work on the previous batch has been launched
        buffer = self.buffers.get(index)
        if buffer is None or (buffer.shape, buffer.dtype) != (batch.images.shape, batch.images.dtype):
            buffer = self.buffers[index] = torch.empty_like(batch.images, device=self.device)
            self.released[index] = compute_stream.record_event()  # earlier work may still use this memory
        self.copy_stream.wait_event(self.released[index])
        with torch.cuda.stream(self.copy_stream):
            buffer.copy_(batch.images, non_blocking=True)
        compute_stream.wait_stream(self.copy_stream)
        self.count += 1
        return replace(batch, images=buffer, labels=batch.labels.to(self.device, non_blocking=True))
