"""The base class of training objectives: a model and a batch in, a loss out.

Losses and metrics are means over the images of a micro-batch, so that equal micro-batches average to the full batch.

Shapes: B images, C channels. Pixels are 0 … 1, augmented and mixed already.
"""

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

    def describe(self, pixels: Tensor) -> str:
        """Describe what is predicted, with what pixels (n, C, height, width) say about it; "": nothing to say."""
        return ""

    def finish(self, trained: Model, config: Fit) -> None:
        """Change the trained model, which is to be saved, as the objective needs it."""
