"""The MLP of a block (paper eq. 3) with GELU, and its gated kind, SwiGLU.

Shapes: B batch, T tokens, D width, M MLP width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.config import ViTConfig
from vitkit.model.initialise import linear
from vitkit.model.options import Gelu


def apply_gelu(x: Tensor, kind: Gelu) -> Tensor:
    """Return x·Φ(x): exact, by tanh (Google), or "quick" by a logistic function (OpenAI's CLIP)."""
    if kind == "quick":
        return x * torch.sigmoid(1.702 * x)
    return F.gelu(x, approximate="tanh" if kind == "tanh" else "none")


def apply_swiglu(gate_up: Tensor) -> Tensor:
    """Return SiLU(gate)·up: (…, 2·M) → (…, M)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


class Mlp(nn.Module):
    def __init__(self, *, width: int, hidden: int, gelu: Gelu, dropout: float):
        super().__init__()
        self.up = linear(width, hidden)
        self.down = linear(hidden, width)
        for layer in (self.up, self.down):
            nn.init.normal_(layer.bias, std=1e-6)
        self.gelu = gelu
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D)
        hidden = apply_gelu(self.up(x), self.gelu)  # (B, T, M)
        return self.down(self.dropout(hidden))  # (B, T, D)


class SwiGlu(nn.Module):
    """A gated MLP (Shazeer, GLU Variants Improve Transformer): SiLU of one product times another."""

    def __init__(self, *, width: int, hidden: int, dropout: float):
        super().__init__()
        self.gate_up = linear(width, 2 * hidden)  # rows of the gate first; DINOv2's w12, DINOv3's gate_proj and up_proj
        for part in self.gate_up.weight.chunk(2):  # two Xavier layers in one
            nn.init.xavier_uniform_(part)
        self.down = linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D)
        hidden = apply_swiglu(self.gate_up(x))  # (B, T, M)
        return self.down(self.dropout(hidden))  # (B, T, D)


def build_mlp(config: ViTConfig, *, dropout: float) -> Mlp | SwiGlu:
    if config.swiglu:
        return SwiGlu(width=config.width, hidden=config.mlp, dropout=dropout)
    return Mlp(width=config.width, hidden=config.mlp, gelu=config.gelu, dropout=dropout)
