"""Image → patch embeddings (paper eq. 1): cut into P x P patches, flatten, project to width D.

Shapes: B batch, C channels, P patch side, h x w patch grid, N = h·w patches, D width.
"""

from torch import Tensor, nn

from vitkit.errors import SizeError
from vitkit.model.initialise import lecun_normal_


class PatchEmbedding(nn.Module):
    def __init__(self, *, channels: int, patch: int, width: int, bias: bool = True):
        super().__init__()
        self.patch = patch
        self.project = nn.Linear(channels * patch * patch, width, bias=bias)
        lecun_normal_(self.project.weight)
        if bias:
            nn.init.zeros_(self.project.bias)

    def forward(self, image: Tensor) -> Tensor:  # (B, C, h·P, w·P)
        return self.project(cut(image, self.patch))  # (B, N, D)


def cut(image: Tensor, patch: int) -> Tensor:
    """(B, C, h·P, w·P) → (B, N, C·P·P), rows first, as a convolution with stride P would see them."""
    b, c, height, width = image.shape
    if height % patch or width % patch:
        raise SizeError(
            f"a {height} x {width} image cannot be cut into {patch}-pixel patches; "
            f"use {height // patch * patch} x {width // patch * patch} or another patch size"
        )
    grid = image.reshape(b, c, height // patch, patch, width // patch, patch)
    return grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
