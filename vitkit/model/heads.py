"""Tokens → representation → logits (paper eq. 4): the ways to pool, and the heads of pre-training and fine-tuning.

Shapes: B batch, T tokens, D width, V pooled width (D, 2·D or k·D), k seeds, R representation width, K classes, H heads.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.config import ViTConfig
from vitkit.model.cross_attention import CrossBlock
from vitkit.model.initialise import lecun_normal_, linear
from vitkit.model.mlp import build_mlp


class TokenPool(nn.Module):
    """The class token."""

    def forward(self, tokens: Tensor) -> Tensor:  # (B, T, D)
        return tokens[:, 0]  # (B, D)


class DistilledPool(nn.Module):
    """The class token and the distillation token, side by side."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens[:, :2].flatten(1)  # (B, 2·D)


class MeanPool(nn.Module):
    """The mean of the patch tokens, without special tokens. Google's tokens come normalised; timm normalises here."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.first = config.special_tokens
        self.norm = nn.LayerNorm(config.width, eps=config.eps) if config.pool == "gap-norm" else nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.norm(tokens[:, self.first :].mean(dim=1))  # (B, D)


class TokenMeanPool(nn.Module):
    """The class token and the mean of the patch tokens, side by side, as DINOv2's linear classifiers read them."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.first = config.special_tokens

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.cat([tokens[:, 0], tokens[:, self.first :].mean(dim=1)], dim=1)  # (B, 2·D)


class AttentionPool(nn.Module):
    """A learned query attends to all tokens, then an MLP (Zhai et al., Scaling Vision Transformers: the MAP head)."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.heads = config.heads
        self.probe = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, config.width)))
        self.query = linear(config.width, config.width)
        self.key_value = linear(config.width, 2 * config.width)
        for part in self.key_value.weight.chunk(2):
            nn.init.xavier_uniform_(part)
        self.out = linear(config.width, config.width)
        self.mlp_norm = nn.LayerNorm(config.width, eps=config.eps)
        self.mlp = build_mlp(config, dropout=0.0)

    def forward(self, tokens: Tensor) -> Tensor:
        query = self.query(self.probe).expand(tokens.shape[0], -1, -1)  # (B, 1, D)
        query = query.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, 1, d)
        pairs = self.key_value(tokens).unflatten(-1, (2, self.heads, -1))
        key, value = pairs.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, T, d) each
        mixed = F.scaled_dot_product_attention(query, key, value)
        pooled = self.out(mixed.transpose(1, 2).flatten(2)).squeeze(1)  # (B, D)
        return pooled + self.mlp(self.mlp_norm(pooled))


class SeedPool(nn.Module):
    """Pooling by learned seeds (Lee et al. 2019, Set Transformer): PMA, eq. 11. Several seeds then meet in attention.

    The vectors of the seeds stand side by side. PMA first passes the tokens through an MLP; here the encoder's last
    block ends in one.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.seeds = nn.Parameter(nn.init.xavier_uniform_(torch.empty(config.seeds, config.width)))
        self.attend = CrossBlock(config, context_normed=True)
        self.among = CrossBlock(config) if config.seeds > 1 else None  # the SAB of eq. 15

    def forward(self, tokens: Tensor) -> Tensor:  # (B, T, D)
        seeds = self.attend(self.seeds, tokens, {}, "pool")  # (B, k, D)
        seeds = seeds if self.among is None else self.among(seeds, seeds, {}, "pool")
        return seeds.flatten(1)  # (B, k·D)


class Head(nn.Module):
    """Pre-training: a tanh layer, then logits. Fine-tuning: one linear layer, zero at the start.

    With 0 classes there are no logits and the representation comes out.
    """

    logits: nn.Module

    def __init__(
        self,
        *,
        width: int,
        classes: int,
        representation: int | None = None,
        distilled: bool = False,
        normalise: bool = False,
    ):
        super().__init__()
        self.representation = _lecun(width, representation) if representation else None
        if not classes:
            self.logits = nn.Identity()
        elif distilled:
            self.logits = DistilledLogits(width=width // 2, classes=classes)
        elif normalise:
            self.logits = CosineLogits(representation or width, classes)
        else:
            self.logits = zero_linear(representation or width, classes)

    def represent(self, pooled: Tensor) -> Tensor:  # (B, V)
        return pooled if self.representation is None else self.representation(pooled).tanh()  # (B, R)

    def forward(self, representation: Tensor) -> Tensor:
        return self.logits(representation)  # (B, K)


class CosineLogits(nn.Linear):
    """Logits that see only the direction of the representation, as CLIP compares images with texts.

    With rows of one length, the logits are cosine similarities times that length, plus the bias.
    """

    def __init__(self, width: int, classes: int):
        super().__init__(width, classes)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, representation: Tensor) -> Tensor:  # (B, R)
        return super().forward(F.normalize(representation, dim=-1))  # (B, K)


class DistilledLogits(nn.Module):
    """DeiT's two heads, one for the class token and one for the distillation token, and the mean of their logits."""

    def __init__(self, *, width: int, classes: int):
        super().__init__()
        self.class_token = zero_linear(width, classes)
        self.distillation_token = zero_linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:  # (B, 2·D)
        class_token, distillation_token = tokens.chunk(2, dim=-1)
        return (self.class_token(class_token) + self.distillation_token(distillation_token)) / 2  # (B, K)


def build_pool(config: ViTConfig) -> nn.Module:
    if config.distillation != "none":
        return DistilledPool()
    if config.pool == "token":
        return TokenPool()
    if config.pool == "token-gap":
        return TokenMeanPool(config)
    if config.pool == "attention":
        return AttentionPool(config)
    if config.pool == "seeds":
        return SeedPool(config)
    return MeanPool(config)


def zero_linear(width: int, classes: int) -> nn.Linear:
    layer = nn.Linear(width, classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _lecun(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    lecun_normal_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
