"""Batch normalisation of tokens (Ioffe and Szegedy 2015), with statistics in float32 whatever the model computes in.

Shapes: B batch, N patches, D width.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class BatchNorm(nn.Module):
    """Normalise each feature over the tokens of a batch; in evaluation, by running averages of what training saw."""

    running_mean: Tensor
    running_var: Tensor
    average: Callable[[Tensor], Tensor] | None = None  # of several processes, which share a batch

    def __init__(self, width: int, *, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.eps, self.momentum = eps, momentum

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean, var = self._batch_statistics(wide) if self.training else (self.running_mean, self.running_var)
        scale = (var.to(wide.dtype) + self.eps).rsqrt() * self.weight
        return ((wide - mean) * scale + self.bias).to(x.dtype)

    def _batch_statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of each feature in the batch (D,), and average them into the running ones."""
        moments = torch.stack([x.mean(dim=(0, 1)), x.square().mean(dim=(0, 1))])
        mean, square = moments if self.average is None else self.average(moments)
        var = (square - mean.square()).clamp(min=0)
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var, self.momentum)
        return mean, var


def running_statistics(module: nn.Module) -> dict[str, Tensor]:
    """Return the running means and variances by name: the buffers that training changes, in the forward pass."""
    return {
        f"{path}.{name}".lstrip("."): tensor
        for path, child in module.named_modules()
        if isinstance(child, BatchNorm)
        for name, tensor in child.named_buffers(recurse=False)
    }
