"""The base class of training objectives: a model and a batch in, a loss out.

Losses and metrics are means over the images of a micro-batch, so that equal micro-batches average to the full batch.

Shapes: B images, C channels. Pixels are 0 … 1, augmented and mixed already.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from vitkit.config.schema import Fit
from vitkit.data.transforms import per_channel
from vitkit.kernels.fuse import fuse
from vitkit.model.build import Model

LossAndMetrics = tuple[Tensor, dict[str, Tensor]]  # the loss; other scalars to log, detached


class Objective(nn.Module):
    """A model, fused in place, with its training loss; `forward` returns loss and metrics of a micro-batch."""

    mean: Tensor
    std: Tensor

    capturable: ClassVar[bool] = True  # as a CUDA graph: the host neither reads a value nor decides by one

    def __init__(self, model: Model, *, class_token_only: bool):
        super().__init__()
        self.reason_not_fused = fuse(model, class_token_only=class_token_only)
        self.model = model
        preprocessing = model.metadata.preprocessing
        for name, values in (("mean", preprocessing.mean), ("std", preprocessing.std)):
            self.register_buffer(name, per_channel(values, model.config.channels)[None], persistent=False)

    def normalise(self, pixels: Tensor) -> Tensor:  # (B, C, height, width)
        """Normalise in the pixels' dtype and cast to the model's, which may be narrower."""
        return ((pixels - self.mean) / self.std).to(self.model.dtype)

    def forward(self, pixels: Tensor, targets: Tensor) -> LossAndMetrics:
        raise NotImplementedError

    def at_step(self, step: int, steps: int) -> None:
        """Prepare for step `step`, from 0, of a run of `steps`: for what changes during training."""

    def before_compiling(self) -> None:
        """Leave out what torch.compile is not for; called before the objective is compiled."""

    def example_targets(self, count: int) -> Tensor:
        """Return targets for `count` images, of the shape that training has, for a dry run."""
        return torch.zeros(count, max(self.model.config.classes, 1), device=self.mean.device)

    def describe(self, pixels: Tensor) -> str:
        """Describe what is predicted, with what pixels (n, C, height, width) say about it; "": nothing to say."""
        return ""

    def finish(self, trained: Model, config: Fit) -> None:
        """Change the trained model, which is to be saved, as the objective needs it."""
