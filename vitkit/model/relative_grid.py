"""2-D relative positions: a vector for each offset between rows and one for each offset between columns.

Bello et al. 2019, eq. 3-4, after Shaw et al. 2018: query i adds q_i · (r_down + r_right) / √d to its score with key j.
The heads share the vectors. BoTNet has the same.

Shapes: B batch, H heads, h x w feature map, N = h·w, d channels of a head.
"""

import math

from torch import Tensor

from vitkit.model.feature_map_attention import OffsetTables, offset_table
from vitkit.model.resize_positions import Grid
from vitkit.model.shear import shear


class RelativeGrid(OffsetTables):
    axes = {"rows": 0, "columns": 1}  # noqa: RUF012 - a constant of the class

    def __init__(self, grid: Grid, width: int):
        super().__init__()
        self.rows = offset_table(2 * grid[0] - 1, width)
        self.columns = offset_table(2 * grid[1] - 1, width)

    def forward(self, query: Tensor, grid: Grid) -> Tensor:  # (B, H, N, d)
        """Return the bias (B, H, N, N), scaled like the content scores that it is added to."""
        query = query.unflatten(2, grid) / math.sqrt(query.shape[-1])  # (B, H, h, w, d)
        down = shear(query.transpose(2, 3) @ self.rows.T).transpose(2, 3)  # (B, H, h, w, h)
        right = shear(query @ self.columns.T)  # (B, H, h, w, w)
        return (down.unsqueeze(-1) + right.unsqueeze(-2)).flatten(4).flatten(2, 3)
