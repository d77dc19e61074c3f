"""Stateless random numbers: a pure function of (seed, epoch, image index, stream), so resuming needs no saved state.

An image's numbers do not depend on the batch, worker or process that draws them. The arithmetic is on integers until
the last step, so every machine gives the same bits. It runs on the host, in numpy: the indices are there, and for a few
numbers per image numpy is several times faster than a tensor library on any device.

Shapes: B images, N numbers for each.
"""

import functools
import zlib

import numpy as np
from numpy.typing import ArrayLike

from vitkit.errors import ConfigError

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / the golden ratio: the step of SplitMix64


def uniform(seed: int, epoch: ArrayLike, indices: ArrayLike, stream: str, count: int) -> np.ndarray:
    """Draw (B, count) float32 numbers in [0, 1), each a multiple of 2^-24, for (B,) image indices.

    `stream` names the purpose of the numbers ("flip", "crop"): two purposes never share numbers, and a new purpose
    leaves the others unchanged. The first numbers of an image are the same for every `count`. For a batch that crosses
    the end of an epoch, `epoch` is (B,) too.
    """
    images = np.asarray(indices)
    if images.ndim != 1 or images.dtype.kind not in "iu":
        raise ConfigError(
            f"random draws need one integer index per image, not {images.dtype} of shape {images.shape}",
            try_="a 1-D array or tensor of dataset indices, on the CPU",
        )
    epochs = splitmix64(np.asarray(epoch).astype(np.uint64) + _key(seed, stream))  # (1,) or (B,)
    own = splitmix64(images.astype(np.uint64) * _GOLDEN + epochs)  # (B,)
    bits = splitmix64(own[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)  # (B, N)
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)  # 24 bits: what a float32 holds evenly


@functools.cache
def _key(seed: int, stream: str) -> np.ndarray:
    return splitmix64(splitmix64(np.array([seed % 2**64], np.uint64)) + np.uint64(zlib.crc32(stream.encode())))


def splitmix64(x: np.ndarray) -> np.ndarray:
    """Apply SplitMix64's finaliser (Steele, Lea, Flood 2014): each input bit changes half of the output bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def generator(seed: int, *counters: int) -> np.random.Generator:
    """Return a generator whose numbers depend on (seed, epoch, index, …) alone, in any order and on any machine."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed % 2**64, *counters))))
