"""The task of a decode process for a segmentation model: whole images squashed to its input, large ones in windows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vitkit.compute.upsample import Size
from vitkit.compute.windows import is_large, window_count, window_grid
from vitkit.data.decode import only_decode_errors
from vitkit.errors import DecodeError
from vitkit.serve.decode_task import DecodedImage, DecodeTask
from vitkit.serve.decode_upload import decode_upload


@dataclass(frozen=True)
class SegmentTask(DecodeTask):
    """Decode an image; `image` of the result is that of a model's input, or of all windows (N, C, height, width).

    Windows are counted before any is resized: a line of a million pixels would have thousands.
    """

    trained_size: Size | None = None
    window_limit: int = 1

    def __call__(self, content: bytes) -> DecodedImage:
        with only_decode_errors():
            pixels = decode_upload(content, channels=self.channels, pixel_limit=self.pixel_limit)
            size = (pixels.shape[0], pixels.shape[1])
            if self.trained_size is None or not is_large(size, self.trained_size):
                return DecodedImage(self.transform(pixels), size=size)
            count = window_count(size, self.trained_size)
            if count > self.window_limit:
                raise DecodeError(
                    f"its {size[1]} x {size[0]} pixels would be cut into {count:,} windows of {self.trained_size[1]} x "
                    f"{self.trained_size[0]}, over the limit of {self.window_limit}; send it smaller"
                )
            rows, columns = window_grid(size, self.trained_size)
            windows = [self.transform(pixels[slice(*row), slice(*column)]) for row in rows for column in columns]
            return DecodedImage(torch.stack(windows), size=size)

    def answer_shape(self, size: Size) -> tuple[int, ...]:
        if min(size) < 1 or size[0] * size[1] > self.pixel_limit:
            raise ValueError("an image of a size that it cannot have")
        if not is_large(size, self.trained_size):
            return self.shape
        count = window_count(size, self.trained_size)
        if count > self.window_limit:
            raise ValueError("more windows than an image may have")
        return count, *self.shape
