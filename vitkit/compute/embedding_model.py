"""A model whose output is a vector for search, clustering and de-duplication instead of logits.

It shares the weights of a classifier; only its pool and head are others. So everything that computes logits, the fused
forward pass, int8, CUDA graphs, onnxruntime, computes vectors as well.

Shapes: B batch, T tokens, D width, V width of the vector.
"""

from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from vitkit.errors import ConfigError
from vitkit.model.build import Model, check_of_images, shared_copy
from vitkit.model.config import ViTConfig, without_head
from vitkit.model.heads import Head, MeanPool
from vitkit.model.vit import VisionTransformer

EmbeddingPool = Literal["representation", "token", "gap", "token-gap"]


class TokenAndMeanPool(nn.Module):
    """The class token, the mean of the patch tokens, or one after the other; timm's norm after pooling is kept."""

    def __init__(self, pool: EmbeddingPool, first_patch: int, norm: nn.Module):
        super().__init__()
        self.token, self.mean, self.first_patch = "token" in pool, "gap" in pool, first_patch
        self.norm = norm

    def forward(self, tokens: Tensor) -> Tensor:  # (B, T, D)
        vectors = [tokens[:, 0]] * self.token + [tokens[:, self.first_patch :].mean(dim=1)] * self.mean
        return torch.cat([self.norm(vector) for vector in vectors], dim=-1)  # (B, V)


def embedding_model(model: Model, pool: EmbeddingPool = "representation") -> Model:
    """Return a model images → vectors (B, V) that shares the weights of the given one.

    "representation" is the input of the logits; "token" the encoded class token, "gap" the mean of the encoded patch
    tokens, "token-gap" both, the class token first; the last three are without CLIP's projection.
    """
    check_pool(model, pool)
    embedding = shared_copy(model)
    tanh_layer = embedding.head.representation
    if isinstance(embedding, VisionTransformer) and pool != "representation":
        config, tanh_layer = embedding.config, None
        norm = embedding.pool.norm if isinstance(embedding.pool, MeanPool) else nn.Identity()
        embedding.pool = TokenAndMeanPool(pool, config.special_tokens, norm)
        embedding.projection = None
        # Fast paths compute the class token alone in the last block where the config says that it is all they need.
        if (pool == "token" or config.pool == "token") and config.distillation == "none":
            config = replace(config, pool="token" if pool == "token" else "gap", seeds=1)
        embedding.config = replace(config, representation=None, projection=None)
    embedding.head = Head(width=embedding.representation_width, classes=0)
    embedding.head.representation = tanh_layer
    embedding.config = without_head(embedding.config)
    embedding.metadata = replace(embedding.metadata, labels=None)
    return embedding.eval()


def embedding_width(model: Model, pool: EmbeddingPool) -> int:
    """Return the length of the vectors."""
    if pool == "representation":
        layer = model.head.representation
        return model.representation_width if layer is None else layer.out_features
    width = model.config.width if isinstance(model.config, ViTConfig) else model.representation_width
    return width * (2 if pool == "token-gap" else 1)


def check_pool(model: Model, pool: EmbeddingPool) -> None:
    """Raise a ConfigError for vectors that the model does not have."""
    if pool not in get_args(EmbeddingPool):
        raise ConfigError(f"pool={pool!r} is not known", choose_from=", ".join(get_args(EmbeddingPool)))
    check_of_images(model, "a vector of an image")
    if "token" not in pool:
        return
    if not isinstance(model, VisionTransformer):
        raise ConfigError(
            f"pool {pool!r} reads the class token, and {model.kind} has none",
            try_="representation, the mean over the image",
        )
    if not model.config.class_token:
        raise ConfigError(
            f"pool {pool!r} reads the class token, and this model has none: it pools by {model.config.pool!r}",
            try_="gap, the mean of the patch tokens, or representation, the model's own pooling",
        )
