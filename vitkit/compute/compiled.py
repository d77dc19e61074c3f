"""A model compiled by torch, for each size that it meets."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Compiled(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.compiled = torch.compile(model, dynamic=False, fullgraph=True)

    def forward(self, images: Tensor) -> Tensor:
        import torch._dynamo  # a second to import, for those who compile

        # torch stops compiling a function after 8 times, and counts all models of a process together
        with torch._dynamo.config.patch(recompile_limit=1000, accumulated_recompile_limit=1000):
            logits: Tensor = self.compiled(images)
        return logits
