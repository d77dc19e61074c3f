"""The task that data are opened for: classes of images, or masks with a class for every pixel."""

from typing import Literal

Task = Literal["auto", "classify", "segment"]  # "auto": segment where images have masks
