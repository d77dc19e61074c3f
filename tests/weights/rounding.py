"""The tolerance for logits near 1 from two implementations in float32, each with sums of some hundred terms."""

from __future__ import annotations

import torch

ROUNDING = 80 * torch.finfo(torch.float32).eps
