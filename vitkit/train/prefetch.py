"""The inputs of a step: batches prefetched to the device and augmented there.

Prefetching copies a batch on a stream of its own while the previous step computes.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vitkit.data.batch import Batch
from vitkit.train.distributed import Processes
from vitkit.train.inputs import MakeInputs
from vitkit.train.step import MicroBatch


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
        return replace(batch, images=buffer, labels=batch.targets(self.device))


class InputPipeline:
    """Makes the pixels and targets of a micro-batch from a batch of the data loader."""

    def __init__(self, make_inputs: MakeInputs, processes: Processes, seed: int):
        self.make_inputs = make_inputs
        self.seed, self.rank = seed, processes.rank
        self.prefetch, self.device = Prefetcher(processes.device), processes.device

    def __call__(self, number: int, batch: Batch) -> MicroBatch:
        """Augment micro-batch `number` on the device, and seed torch for what the forward pass draws."""
        inputs = self.make_inputs(number, self.prefetch(batch))
        seed_generators(self.device, micro_batch_seed(self.seed, number, self.rank))
        return inputs


def seed_generators(device: torch.device, seed: int) -> None:
    """Seed the generators that a step on this device draws from.

    torch.manual_seed also seeds those of devices that are not there, and formats the Python stack for each: 0.4 ms.
    """
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)
    torch.default_generator.manual_seed(seed)


def micro_batch_seed(seed: int, number: int, rank: int) -> int:
    """Return a seed for torch's generators that depends on the run's seed, the micro-batch and the rank only."""
    state = np.random.SeedSequence((seed % 2**64, 0xD0, number, rank)).generate_state(1, np.uint64)[0]
    return int(state) >> 1  # torch takes 63 bits
