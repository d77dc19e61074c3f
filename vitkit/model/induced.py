"""Induced attention (Lee et al. 2019, Set Transformer, eq. 9-10): a layer whose cost is linear in the tokens.

    ISAB(X) = MAB(X, H),  H = MAB(I, X)

m learned inducing points I gather from all T tokens, then the tokens read from them: 2·m·T weights in place of T².

Shapes: B batch, T tokens, m inducing points, D width, H heads.
"""

from torch import Tensor, nn

from vitkit.model.capture import Seen
from vitkit.model.config import ViTConfig
from vitkit.model.cross_attention import CrossBlock
from vitkit.model.initialise import table


class InducedBlock(nn.Module):
    """One layer, in the place of a block of self-attention; it has about twice the parameters."""

    def __init__(self, config: ViTConfig, *, drop: float):
        super().__init__()
        self.points = nn.Parameter(nn.init.xavier_uniform_(table(config.induced, config.width)))
        self.gather = CrossBlock(config, drop=drop)
        self.read = CrossBlock(config, drop=drop)

    def forward(self, x: Tensor, positions: None, seen: Seen, name: str) -> Tensor:  # (B, T, D)
        points = self.gather(self.points, x, seen, f"{name}/inducing")  # (B, m, D); weights (B, H, m, T)
        return self.read(x, points, seen, f"{name}/tokens")  # weights (B, H, T, m)
