"""What a model takes, made of a picture: for training loops and pipelines of one's own.

see = vitkit.preprocess(model)
logits = model(torch.stack([see("cat.jpg"), see(pil_image)]))
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitkit.data.transforms import Exact
from vitkit.model.build import Model
from vitkit.predict.inputs import Given, pixels_of


@dataclass(frozen=True)
class Preprocess:
    """The preprocessing that belongs to weights: resized, cropped and normalised as they were evaluated. Picklable, for
    the workers of a DataLoader."""

    exact: Exact
    channels: int

    def __call__(self, picture: Given) -> Tensor:
        """A path, bytes, an open file, a PIL image or an array → (C, height, width) float32, upright."""
        return self.exact(pixels_of(picture, channels=self.channels))


def preprocess(model: Model) -> Preprocess:
    """Of the model as it is now: after `resize`, for its new image size."""
    return Preprocess(
        Exact(image=model.config.image, preprocessing=model.metadata.preprocessing), model.config.channels
    )
