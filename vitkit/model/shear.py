"""Scores by offset → scores by key, without an index: rows are shifted by reading them with another length.

Other names for it are relative shift (Transformer-XL) and rel_to_abs (the code of attention-augmented convolution).

Shapes: T places along a side, 2T-1 offsets between two of them.
"""

import torch.nn.functional as F
from torch import Tensor


def shear(scores: Tensor) -> Tensor:
    """(…, T, 2T-1), one column per offset key - query from 1-T up → (…, T, T), one column per key.

    Row i must shift left by T-1-i. One column of padding makes a row 2T long; read with a row length of 2T-1 instead,
    each row starts one further on.
    """
    t = scores.shape[-2]
    flat = F.pad(scores, (0, 1)).flatten(-2)
    return flat[..., t - 1 : t - 1 + t * (2 * t - 1)].unflatten(-1, (t, 2 * t - 1))[..., :t]
