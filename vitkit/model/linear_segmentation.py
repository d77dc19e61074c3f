"""The linear head of a segmenter, as DINOv2's: batch normalisation and a 1 x 1 projection of the patch tokens.

Shapes: B batch, T tokens, N = h·w patches, D width, K classes.
"""

from torch import Tensor, nn

from vitkit.model.batch_norm import BatchNorm
from vitkit.model.heads import zero_linear
from vitkit.model.segmenter_config import SegmenterConfig


class LinearSegmentation(nn.Module):
    """Encoded tokens → class scores of each patch. It starts at zero, as every new layer of logits here does."""

    logits: nn.Module

    def __init__(self, config: SegmenterConfig):
        super().__init__()
        self.norm = BatchNorm(config.width)
        self.logits = zero_linear(config.width, config.classes)

    def forward(self, patches: Tensor, grid: tuple[int, int]) -> Tensor:  # (B, N, D)
        scores: Tensor = self.logits(self.norm(patches))  # (B, N, K)
        return scores.transpose(1, 2).unflatten(2, grid)  # (B, K, h, w)

    def replace_classes(self, config: SegmenterConfig) -> None:
        self.logits = zero_linear(config.width, config.classes)
