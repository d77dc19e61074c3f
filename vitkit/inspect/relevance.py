"""What speaks for one class: rollout with each weight counted by how much the class's logit gains from it.

Chefer et al. (2021): R = I, then R ← R + A⁺ R through the layers, where A⁺ = mean over heads of max(A · ∂logit/∂A, 0).
The gradient needs weights that take part in the computation, which the fused kernel never forms. So the pass runs
through a twin of the model: the same weights in modules of its own, its attention written out. The model is untouched.

Shapes: B pictures, K classes, H heads, T tokens, d width of a head, h x w patch grid.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from vitkit.errors import ConfigError
from vitkit.inspect.applies import DoesNotApply, placed, together, transformer, widened
from vitkit.inspect.attention import spread, views
from vitkit.inspect.tokens import Token, over_patches, query
from vitkit.model.attention import SelfAttention
from vitkit.model.build import Model
from vitkit.model.encoder import Block
from vitkit.model.positions import Relative
from vitkit.model.vit import VisionTransformer


@dataclass(frozen=True)
class Relevance:
    maps: NDArray[np.float32]  # (B, h, w), 0 where nothing speaks for the class
    classes: NDArray[np.int64]  # (B,) the class that is asked about
    probabilities: NDArray[np.float32]  # (B,) of that class


def relevance(
    model: Model, images: Tensor, *, classes: ArrayLike | None = None, token: Token | None = None
) -> Relevance:
    """For the given class of each picture, or the model's own answers; read off where rollout is."""
    vit = transformer(model, "relevance")
    if not vit.config.classes:
        raise DoesNotApply("relevance for a class: this model has no classes, only a representation.")
    wanted = None if classes is None else _classes(classes, len(images), vit.config.classes)
    asked = query(vit, token)
    # the graph keeps the weights of all layers
    few = max(together(vit) // vit.config.depth, 1)
    parts = images.split(few)
    found = [
        _relevance(vit, part, some)
        for part, some in zip(parts, [None] * len(parts) if wanted is None else wanted.split(few), strict=True)
    ]
    rolled, told, sure = (torch.cat(each).cpu() for each in zip(*found, strict=True))
    maps = over_patches(vit, torch.einsum("t,bts->bs", asked.to(rolled), rolled))
    return Relevance(maps.float().numpy(), told.numpy(), sure.float().numpy())


@torch.inference_mode(False)  # whoever looks need not train, but a gradient is asked for
def _relevance(model: VisionTransformer, images: Tensor, classes: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    twin, formed = written_out(model)
    with torch.no_grad():
        patches = twin.embed(placed(images, model))
    with torch.enable_grad():
        pooled = twin.pool(twin.encode(patches.requires_grad_()))
        logits = twin.head(twin.head.represent(pooled))  # (b, K)
        classes = logits.argmax(1) if classes is None else classes.to(logits.device)
        score = logits.gather(1, classes[:, None]).sum()  # pictures do not meet, so each gets its own gradient
        gradients = torch.autograd.grad(score, formed)
    rolled: Tensor | None = None
    for view, weights, gradient in zip(views(model), formed, gradients, strict=True):
        speaks = widened(weights.detach() * gradient).clamp(min=0).mean(dim=1, keepdim=True)
        if view.along:
            h, w = model.config.grid
            speaks = spread(speaks.unflatten(0, (-1, h if view.along == "rows" else w)), view.along, (h, w))
        step = speaks[:, 0]  # (b, T, T)
        rolled = step if rolled is None else rolled + step + step @ rolled
    assert rolled is not None
    # without the identity, which would only brighten every patch alike where all of them are asked
    return rolled, classes, widened(logits.detach()).softmax(1).gather(1, classes[:, None])[:, 0]


def written_out(model: VisionTransformer) -> tuple[VisionTransformer, list[Tensor]]:
    """A twin that shares the model's weights, frozen, and the list into which each pass puts its attention."""
    shared: dict[int, object] = {id(one): nn.Parameter(one.detach(), requires_grad=False) for one in model.parameters()}
    shared |= {id(one): one for one in model.buffers()}
    twin = copy.deepcopy(model, shared).eval()
    formed: list[Tensor] = []
    for block in [module for module in twin.modules() if isinstance(module, Block)]:
        block.attention = _WrittenOut(block.attention, formed)  # type: ignore[assignment]
    return twin, formed


class _WrittenOut(nn.Module):
    def __init__(self, attention: SelfAttention, formed: list[Tensor]):
        super().__init__()
        self.attention, self.formed = attention, formed

    def forward(self, x: Tensor, relative: Relative | None = None, wanted: int | None = None) -> Tensor:
        weights = self.attention.weights(x, relative)  # (b, H, T, T)
        self.formed.append(weights)
        value = self.attention.qkv(x).chunk(3, dim=-1)[2].unflatten(-1, (self.attention.heads, -1))
        mixed = weights[:, :, :wanted] @ value.transpose(1, 2)  # (b, H, T, d)
        return self.attention.out(mixed.transpose(1, 2).flatten(2))


def _classes(classes: ArrayLike, pictures: int, known: int) -> Tensor:
    given = np.asarray(classes, dtype=np.int64)
    if given.shape not in ((), (pictures,)):
        raise ConfigError(f"{given.size} classes for {pictures} pictures", try_="one class, or one for each picture")
    wanted = torch.from_numpy(np.broadcast_to(given, (pictures,)).copy())
    if len(wanted) and not 0 <= int(wanted.min()) <= int(wanted.max()) < known:
        raise ConfigError(f"classes {wanted.tolist()} are not all among the model's", classes=f"0 to {known - 1}")
    return wanted
