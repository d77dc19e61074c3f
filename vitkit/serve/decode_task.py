"""The task of a decode process: decode an uploaded image, resize and normalise it, and send the result back.

Only inputs of the model's size cross between processes, never the pixels of a large image. The answer holds JSON
and plain bytes and is no pickle: whatever takes over a decoder has not taken over the server.
"""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitkit.data.decode import only_decode_errors
from vitkit.data.transforms import EvalTransform
from vitkit.errors import DecodeError
from vitkit.serve.decode_upload import decode_upload

MAX_ANSWER_BYTES = 4096  # of the JSON; a reason is much shorter


@dataclass(frozen=True)
class DecodedImage:
    image: Tensor  # (C, height, width) float32, normalised for the model
    png: bytes | None = None  # of the resized image, if requested
    size: tuple[int, int] = (0, 0)  # height and width of the upright image


@dataclass(frozen=True)
class DecodeTask:
    """The preprocessing of a model, without its weights; picklable."""

    transform: EvalTransform
    channels: int
    pixel_limit: int
    with_png: bool = False

    def __call__(self, content: bytes) -> DecodedImage:
        with only_decode_errors():  # the resize too: no image of a request may fail the others
            pixels = decode_upload(content, channels=self.channels, pixel_limit=self.pixel_limit)
            framed = self.transform.resize_only(pixels)
            png = encode_png(framed) if self.with_png else None
            return DecodedImage(self.transform.normalise(framed), png, (pixels.shape[0], pixels.shape[1]))

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, *self.transform.image

    def answer_shape(self, size: tuple[int, int]) -> tuple[int, ...]:
        """Return the shape of the result for an image of this size; ValueError for a size that it cannot have."""
        return self.shape


def send_answer(connection: Connection, decoded: DecodedImage | DecodeError, seconds: float) -> None:
    """Send a decoded image, or the reason why there is none, with the seconds that it took."""
    if isinstance(decoded, DecodeError):
        connection.send_bytes(json.dumps({"seconds": seconds, "error": str(decoded)[:500]}).encode())
        return
    connection.send_bytes(json.dumps({"seconds": seconds, "error": None, "size": decoded.size}).encode())
    connection.send_bytes(decoded.image.contiguous().numpy().data)
    connection.send_bytes(decoded.png or b"")


def receive_answer(connection: Connection, task: DecodeTask) -> tuple[DecodedImage | DecodeError, float]:
    """Receive what send_answer sent; ValueError, OSError or EOFError if the other side does not keep to it."""
    answer: Any = json.loads(connection.recv_bytes(MAX_ANSWER_BYTES))
    seconds, error = float(answer["seconds"]), answer["error"]
    if error is not None:
        return DecodeError(str(error)), seconds
    height, width = answer["size"]
    size = (int(height), int(width))
    shape = task.answer_shape(size)
    values = bytearray(4 * math.prod(shape))
    if connection.recv_bytes_into(values) != len(values):
        raise ValueError("an image of another size than the model's")
    image = torch.frombuffer(values, dtype=torch.float32).view(shape)
    png = connection.recv_bytes(2 * len(values) + MAX_ANSWER_BYTES)
    return DecodedImage(image, png or None, size), seconds


def encode_png(framed: Tensor) -> bytes:
    """Return an image (C, height, width) on 0 to 255 as a PNG, of its first three channels at most."""
    pixels = framed.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
    image = Image.fromarray(np.ascontiguousarray(pixels[..., :3] if pixels.shape[-1] >= 3 else pixels[..., 0]))
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()
