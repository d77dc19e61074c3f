"""Gradient-weighted rollout for one class: an attention weight counts by how much it raises the class's logit.

Chefer et al. (2021): R = I, then R ← R + A⁺ R through the layers, where A⁺ = mean over heads of max(A · ∂logit/∂A, 0).
The gradient needs attention weights in the autograd graph, and scaled_dot_product_attention never forms them. So the
forward pass runs through a copy that shares the model's weights and computes attention explicitly.

Shapes: B images, K classes, H heads, T tokens, d width of a head, h x w patch grid.
"""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from vitkit.errors import ConfigError
from vitkit.inspect.attention import attention_layers, expand_axial
from vitkit.inspect.inference import DoesNotApply, as_model_input, at_least_float32, batch_size, require_vit
from vitkit.inspect.query_token import Token, on_patch_grid, query_weights
from vitkit.kernels.fuse import PLAIN_BLOCK, TENSOR
from vitkit.model.allow_list import allow
from vitkit.model.attention import AttentionPositions, PartlyBiasedLinear, SelfAttention, split_heads
from vitkit.model.build import Model
from vitkit.model.encoder import AxialBlock, Block
from vitkit.model.layer_scale import LayerScale
from vitkit.model.mlp import Mlp, SwiGlu
from vitkit.model.segmenter import Segmenter
from vitkit.model.vit import VisionTransformer

UNDERSTOOD = allow(
    "relevance",
    vit="depth width mlp heads patch stem image channels classes positions inject pool class_token representation "
    "norm axial gelu eps dropout stochastic_depth "
    "patch_bias class_position distillation registers projection normalise "
    "ln_pre query_bias key_bias value_bias swiglu layer_scale rotary rotary_base rotary_layout seeds",
    plain="content induced",
    conv="layers width preactivation standardise_eps standardise_on norm_eps attention",
    only={"attention": (None,)},
    modules={
        **PLAIN_BLOCK,
        AxialBlock: {"row": (Block,), "column": (Block,)},
        Block: {
            **PLAIN_BLOCK[Block],
            "mlp": (Mlp, SwiGlu),
            "attention_scale": (nn.Identity, LayerScale),
            "mlp_scale": (nn.Identity, LayerScale),
        },
        SelfAttention: {"qkv": (nn.Linear, PartlyBiasedLinear), "out": (nn.Linear,)},
        PartlyBiasedLinear: {"weight": TENSOR, "bias": TENSOR},
        SwiGlu: {"gate_up": (nn.Linear,), "down": (nn.Linear,), "dropout": (nn.Dropout,)},
        LayerScale: {"gamma": TENSOR},
    },
)


@dataclass(frozen=True)
class Relevance:
    maps: NDArray[np.float32]  # (B, h, w), 0 where nothing raises the logit
    classes: NDArray[np.int64]  # (B,) the class that the map explains
    probabilities: NDArray[np.float32]  # (B,) of that class


def relevance(
    model: Model, images: Tensor, *, classes: ArrayLike | None = None, token: Token | None = None
) -> Relevance:
    """Return a relevance map for one class of each image; default: the class that the model predicts."""
    if isinstance(model, Segmenter):
        raise DoesNotApply(
            "relevance for a class: it explains the class of an image; a segmenter has one for each pixel, and its "
            "masks show where."
        )
    vit = require_vit(model, "relevance")
    if not vit.config.classes:
        raise DoesNotApply("relevance for a class: this model has no classes, only a representation.")
    if reason := UNDERSTOOD.reason_to_decline(vit.config, *vit.encoder.blocks):
        raise DoesNotApply(f"{reason}.")
    targets = None if classes is None else _check_classes(classes, len(images), vit.config.classes)
    query = query_weights(vit, token)
    # the autograd graph keeps the attention weights of all layers
    size = max(batch_size(vit) // vit.config.depth, 1)
    batches = images.split(size)
    results = [
        _relevance(vit, batch, batch_targets)
        for batch, batch_targets in zip(
            batches, [None] * len(batches) if targets is None else targets.split(size), strict=True
        )
    ]
    rolled, explained, probabilities = (torch.cat(tensors).cpu() for tensors in zip(*results, strict=True))
    maps = on_patch_grid(vit, torch.einsum("t,bts->bs", query.to(rolled), rolled))
    return Relevance(maps.float().numpy(), explained.numpy(), probabilities.float().numpy())


@torch.inference_mode(False)  # the caller may be in inference mode, but the gradient is needed
def _relevance(model: VisionTransformer, images: Tensor, classes: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    explicit, attention = with_explicit_attention(model)
    with torch.enable_grad():
        # the weights are frozen: the images' gradient brings attention into the graph
        logits = explicit(as_model_input(images, model).clone().requires_grad_())  # (b, K)
        classes = logits.argmax(1) if classes is None else classes.to(logits.device)
        score = logits.gather(1, classes[:, None]).sum()  # images are independent, so each gets its own gradient
        gradients = torch.autograd.grad(score, attention)
    rolled: Tensor | None = None
    for layer, weights, gradient in zip(attention_layers(model), attention, gradients, strict=True):
        positive = at_least_float32(weights.detach() * gradient).clamp(min=0).mean(dim=1, keepdim=True)
        if layer.axis:
            h, w = model.config.grid
            positive = expand_axial(positive.unflatten(0, (-1, h if layer.axis == "rows" else w)), layer.axis, (h, w))
        step = positive[:, 0]  # (b, T, T)
        rolled = step if rolled is None else rolled + step + step @ rolled
    assert rolled is not None
    # without the identity, which would only brighten all patches equally where the query is their mean
    return rolled, classes, at_least_float32(logits.detach()).softmax(1).gather(1, classes[:, None])[:, 0]


def with_explicit_attention(model: VisionTransformer) -> tuple[VisionTransformer, list[Tensor]]:
    """Return a copy that shares the model's weights, frozen, and a list that collects the attention of each forward."""
    shared: dict[int, object] = {id(one): nn.Parameter(one.detach(), requires_grad=False) for one in model.parameters()}
    shared |= {id(one): one for one in model.buffers()}
    explicit = copy.deepcopy(model, shared).eval()
    attention: list[Tensor] = []
    for block in [module for module in explicit.modules() if isinstance(module, Block)]:
        block.attention = _ExplicitAttention(block.attention, attention)
    return explicit, attention


class _ExplicitAttention(nn.Module):
    def __init__(self, attention: SelfAttention, collected: list[Tensor]):
        super().__init__()
        self.attention, self.collected = attention, collected

    def forward(self, x: Tensor, positions: AttentionPositions | None = None) -> Tensor:
        weights = self.attention.weights(x, positions)  # (b, H, T, T)
        self.collected.append(weights)
        _, _, value = split_heads(self.attention.qkv(x), self.attention.heads)
        return self.attention.out((weights @ value).transpose(1, 2).flatten(2))  # (b, T, D)


def _check_classes(classes: ArrayLike, images: int, known: int) -> Tensor:
    """Return one class for each image: (B,)."""
    array = np.asarray(classes, dtype=np.int64)
    if array.shape not in ((), (images,)):
        raise ConfigError(f"{array.size} classes for {images} images", try_="one class, or one for each image")
    targets = torch.from_numpy(np.broadcast_to(array, (images,)).copy())
    if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < known:
        raise ConfigError(f"classes {targets.tolist()} are not all among the model's", classes=f"0 to {known - 1}")
    return targets
