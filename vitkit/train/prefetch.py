"""Batches on their way to a GPU: pictures travel while it is at the step before."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vitkit.data.batch import Batch


class Sender:
    """Two places on the device, in turn: a host that is ten steps ahead of it fills no more than that."""

    def __init__(self, device: torch.device):
        self.device = device
        self.aside = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.places: dict[int, Tensor] = {}
        self.free: dict[int, torch.cuda.Event] = {}  # when nobody reads a place any more
        self.sent = 0

    def __call__(self, batch: Batch) -> Batch:
        """On the device. Its pictures hold until the next but one is sent, or for as long as work that was launched by
        then reads them."""
        if self.aside is None or batch.images.device == self.device:
            return batch.to(self.device)
        here, turn, before = torch.cuda.current_stream(self.device), self.sent % 2, (self.sent - 1) % 2
        self.free[before] = here.record_event()  # whoever reads the batch before has been launched
        place = self.places.get(turn)
        if place is None or (place.shape, place.dtype) != (batch.images.shape, batch.images.dtype):
            place = self.places[turn] = torch.empty_like(batch.images, device=self.device)
            self.free[turn] = here.record_event()  # and whoever had this memory
        self.aside.wait_event(self.free[turn])
        with torch.cuda.stream(self.aside):
            place.copy_(batch.images, non_blocking=True)
        here.wait_stream(self.aside)
        self.sent += 1
        return replace(batch, images=place, labels=batch.labels.to(self.device, non_blocking=True))
