"""Random numbers without state: a pure function of (seed, epoch, picture, stream), so that resuming needs no memory.

A picture's draws do not depend on the batch, worker or process it lands in. They are whole-number arithmetic until the
last step, so every machine gives the same bits. On the host, in numpy: that is where the indices are, and for a few
numbers per picture it is several times faster than a tensor library on any device.

Shapes: B pictures, N numbers for each.
"""

from __future__ import annotations

import functools
import zlib

import numpy as np
from numpy.typing import ArrayLike

from vitkit.errors import ConfigError

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / the golden ratio: the step of SplitMix64


def uniform(seed: int, epoch: ArrayLike, indices: ArrayLike, stream: str, count: int) -> np.ndarray:
    """(B,) whole numbers → (B, count) float32 in [0, 1), each a multiple of 2^-24.

    `stream` names what the numbers are for ("flip", "crop"): two uses never share numbers, and a new use leaves the
    others as they were. The first numbers of a picture are the same for every `count`. A batch that runs over the end
    of an epoch gives `epoch` as (B,) too.
    """
    pictures = np.asarray(indices)
    if pictures.ndim != 1 or pictures.dtype.kind not in "iu":
        raise ConfigError(
            f"draws need one whole number per picture, not {pictures.dtype} of shape {pictures.shape}",
            try_="a 1-D array or tensor of dataset indices, on the CPU",
        )
    epochs = scramble(np.asarray(epoch).astype(np.uint64) + _key(seed, stream))  # (1,) or (B,)
    own = scramble(pictures.astype(np.uint64) * _GOLDEN + epochs)  # (B,)
    bits = scramble(own[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)  # (B, N)
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)  # 24 bits: what a float32 holds evenly


@functools.cache
def _key(seed: int, stream: str) -> np.ndarray:
    return scramble(scramble(np.array([seed % 2**64], np.uint64)) + np.uint64(zlib.crc32(stream.encode())))


def scramble(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): every bit of the input moves half the bits of the output."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
