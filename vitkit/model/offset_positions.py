"""Positions of two patches by the rows and columns from one to the other: learned embeddings, or a Gaussian per head.

Ramachandran et al. (2019) add the query's product with an embedding of the offset to the scores; Cordonnier et al.
(2020) also leave the query out, and draw the attention of a head as a Gaussian around a learned offset.

Shapes: B batch, h x w patch grid, N = h·w patches, D width, H heads, d = D / H.
"""

import math

import torch
from torch import Tensor, nn

from vitkit.model.initialise import table
from vitkit.model.resize_positions import Grid, Interpolation, like, resize_table


class Relative2D(nn.Module):
    """Relative attention in 2-D: half the query times an embedding of rows apart, half times one of columns apart."""

    def __init__(self, *, grid: Grid, width: int, heads: int):
        super().__init__()
        self.grid, self.heads = grid, heads
        self.rows, self.columns = (table(2 * side - 1, width // 2) for side in grid)

    def forward(self, query: Tensor) -> Tensor:  # (B, H, N, d)
        """Return the bias (B, H, N, N), scaled like the content scores that it is added to."""
        by_row, by_column = query.unflatten(2, self.grid).chunk(2, dim=-1)  # (B, H, h, w, d/2) each
        rows, columns = (  # (h, h, H, d/2) and (w, w, H, d/2)
            by_pair(offsets, side).unflatten(-1, (self.heads, -1)) / math.sqrt(query.shape[-1])
            for offsets, side in zip((self.rows, self.columns), self.grid, strict=True)
        )
        return add_rows_and_columns(
            torch.einsum("bniwd,iknd->bniwk", by_row, rows)[..., :, None],
            torch.einsum("bnjwd,wknd->bnjwk", by_column, columns)[..., None, :],
        )

    @torch.no_grad()
    def resize(self, grid: Grid, interpolation: Interpolation) -> None:
        """Interpolate the embeddings of rows and of columns apart, each in 1-D; the ends stay the ends."""
        for name, old, new in zip(("rows", "columns"), self.grid, grid, strict=True):
            offsets = getattr(self, name)
            resized = resize_table(offsets, (2 * old - 1, 1), (2 * new - 1, 1), interpolation)
            setattr(self, name, like(offsets, resized))
        self.grid = grid


class RelativeScores2D(Relative2D):
    """The same without queries: a vector of the head times an embedding of rows apart, plus one for columns."""

    def __init__(self, *, grid: Grid, width: int, heads: int):
        super().__init__(grid=grid, width=2 * width, heads=heads)
        # As the authors start: unit embeddings, and vectors like a linear layer's. From 0.02, heads would stay alike.
        for offsets in (self.rows, self.columns):
            nn.init.normal_(offsets, std=1.0)
        bound = 1 / math.sqrt(width)
        self.row_vectors, self.column_vectors = (
            nn.Parameter(nn.init.uniform_(torch.empty(heads, width), -bound, bound)) for _ in grid
        )

    def forward(self, query: Tensor | None = None) -> Tensor:
        """Return the scores (H, N, N), the same for all images; the paper does not scale them."""
        (h, w), rows, columns = self.grid, self.rows @ self.row_vectors.T, self.columns @ self.column_vectors.T
        by_row, by_column = by_pair(rows, h).permute(2, 0, 1), by_pair(columns, w).permute(2, 0, 1)
        return add_rows_and_columns(by_row[:, :, None, :, None], by_column[:, None, :, None, :])


class Quadratic(nn.Module):
    """A Gaussian per head around its own offset: -|s (δ - Δ)|² / 2 for a key δ = (rows, columns) from the query.

    The paper's α is s² / 2. In the general form s is a 2 x 2 matrix, so that the Gaussian is an ellipse. The unit is
    the patch, so there is nothing to resize.
    """

    def __init__(self, *, grid: Grid, heads: int, general: bool = False):
        super().__init__()
        self.grid = grid
        # the authors' start: offsets of about two patches, widths of about one
        self.centres = nn.Parameter(nn.init.normal_(torch.empty(heads, 2), std=2.0))
        shape = (heads, 2, 2) if general else (heads,)
        start = torch.eye(2).expand(shape) if general else torch.ones(shape)
        self.sharpness = nn.Parameter(start + nn.init.normal_(torch.empty(shape), std=0.01))

    def forward(self, query: Tensor | None = None) -> Tensor:
        """Return the scores (H, N, N), the same for all images; in the dtype of the query, if there is one."""
        # fp32 at least: squares of distances, whose differences count
        wide = torch.promote_types(self.centres.dtype, torch.float32)
        down, right = (  # (H, h, 1, h, 1) and (H, 1, w, 1, w): rows and columns from the centre
            pairwise_offsets(side, self.centres) - centre.view(-1, 1, 1)
            for side, centre in zip(self.grid, self.centres.to(wide).unbind(1), strict=True)
        )
        down, right = down[:, :, None, :, None], right[:, None, :, None, :]
        sharpness = self.sharpness.to(wide)
        if sharpness.ndim == 1:
            half = sharpness.square().view(-1, 1, 1, 1, 1) / 2
            scores = add_rows_and_columns(-half * down.square(), -half * right.square())
        else:
            first, second = sharpness.unbind(1)  # rows of s; s·sᵀ is ((a, b), (b, c))
            products = (first * first, first * second, second * second)
            a, b, c = (product.sum(-1).view(-1, 1, 1, 1, 1) for product in products)
            scores = add_rows_and_columns(-a / 2 * down.square() - b * down * right, -c / 2 * right.square())
        return scores if query is None else scores.to(query.dtype)

    def resize(self, grid: Grid, interpolation: Interpolation) -> None:
        self.grid = grid


def by_pair(offsets: Tensor, side: int) -> Tensor:
    """(2·side-1, …), by offset from 1-side up → (side, side, …): query, key."""
    return offsets[pairwise_offsets(side, offsets) + side - 1]


def pairwise_offsets(side: int, like: Tensor) -> Tensor:
    """Return key - query for all pairs of places along a side: (side, side)."""
    index = torch.arange(side, device=like.device)
    return index[None, :] - index[:, None]


def add_rows_and_columns(rows: Tensor, columns: Tensor) -> Tensor:
    """(…, h, w or 1, h, 1) + (…, h or 1, w, 1, w) → (…, N, N): query, key."""
    return (rows + columns).flatten(-2).flatten(-3, -2)
