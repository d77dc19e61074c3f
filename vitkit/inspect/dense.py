"""Dense features as colours: the first three principal components of the last layer's patches as red, green, blue.

The components are those of all images together, so a colour means the same in each of them.

Shapes: B images, h x w feature map, D width.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.inspect.inference import MAX_BATCH, as_model_input, eval_mode
from vitkit.model.build import Model
from vitkit.model.config import TokenConfig

CLIPPED = 1.0  # percent of patches at either end, so that one odd patch does not take all the contrast


def dense_features(model: Model, images: Tensor) -> NDArray[np.float32]:
    """Return the encoded patches, or a ResNet's last feature map: (B, h, w, D)."""
    batches = []
    with eval_mode(model):
        for batch in images.split(MAX_BATCH):
            name = "encoded" if isinstance(model.config, TokenConfig) else "features"
            _, captured = model(as_model_input(batch, model), capture=(name,))
            if not isinstance(model.config, TokenConfig):
                features = captured[name].permute(0, 2, 3, 1)
            else:
                features = captured[name][:, -model.config.patches :].unflatten(1, model.config.grid)
            batches.append(features.float().cpu())
    return torch.cat(batches).numpy()


def dense_colours(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Project features (B, h, w, D) onto their principal components: (B, h, w, 3) on 0 to 1."""
    patches = features.reshape(-1, features.shape[-1]).astype(np.float64)
    centred = patches - patches.mean(axis=0)
    scores, strengths, _ = np.linalg.svd(centred, full_matrices=False)
    colours = np.zeros((len(patches), 3))
    kept = min(3, len(strengths))
    colours[:, :kept] = (scores * strengths)[:, :kept]
    skew = (colours**3).sum(axis=0)
    colours *= np.where(skew < 0, -1, 1)  # signs are arbitrary; the same images should get the same colours
    low, high = np.percentile(colours, [CLIPPED, 100 - CLIPPED], axis=0)
    scaled = (colours - low) / np.maximum(high - low, 1e-12)
    return scaled.clip(0, 1).reshape(*features.shape[:-1], 3).astype(np.float32)
