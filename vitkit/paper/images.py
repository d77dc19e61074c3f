"""Images for measurements: a seeded sample of a data set, preprocessed as the model wants them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from vitkit.data.decode import decode
from vitkit.data.sources.open import open_data
from vitkit.data.sources.splits import scoring_split
from vitkit.data.transforms import EvalTransform
from vitkit.model.build import Model
from vitkit.paper.claim import Measuring


def sample_images(measuring: Measuring, model: Model, count: int, sets: Mapping[str, str]) -> Tensor:
    """Return (count, channels, height, width); `sets` names the data by scale, smoke takes those in the package."""
    name = sets.get(measuring.scale)
    data = open_data("fashion" if name is None else measuring.datasets.find(name))
    split = data.splits[scoring_split(data)]
    chosen = np.random.default_rng(measuring.seed).choice(len(split), min(count, len(split)), replace=False)
    config = model.config
    transform = EvalTransform(image=config.image, preprocessing=model.metadata.preprocessing)
    images = [transform(decode(split.read(int(index)), channels=config.channels)) for index in chosen]
    return torch.stack(images).to(next(model.parameters()).device)
