"""A model and pictures → everything that can be looked at, as plain arrays; what does not apply, in words.

Shapes: V views (layers), H heads, h x w patch grid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from torch import Tensor

from vitkit.errors import WeightsError
from vitkit.inspect.applies import DoesNotApply, looking, placed
from vitkit.inspect.attention import View, attention_maps, pick_heads, views
from vitkit.inspect.dense import dense_colours, dense_features
from vitkit.inspect.distance import AttentionDistance, attention_distance, by_distance
from vitkit.inspect.embeddings import Filters, filter_components, position_similarity
from vitkit.inspect.pictures import Gallery, Picture
from vitkit.inspect.rasters import Floats
from vitkit.inspect.relevance import Relevance, relevance
from vitkit.inspect.rollout import rollout
from vitkit.inspect.tokens import Token, default_token, query
from vitkit.model.build import Model
from vitkit.model.vit import VisionTransformer
from vitkit.text import counted

SHOWN = 6  # pictures with maps of their own
LAYERS = 12  # of a deeper model, this many evenly spread ones, unless some are asked for
AT_A_TIME = 32  # pictures

Found = TypeVar("Found")


@dataclass(frozen=True)
class Attention:
    token: Token
    views: tuple[View, ...]
    heads: tuple[int, ...]
    maps: Floats  # (pictures, V, H, h, w)


@dataclass(frozen=True)
class Example:
    """One head, one picture, one patch that looks."""

    view: View
    head: int
    maps: Floats  # (h, w)
    shares: Floats  # weight 0, 1, 2 … patches away
    mean: float  # pixels


@dataclass
class Findings:
    """None: does not apply, for a reason in `not_here`."""

    model: Model
    gallery: Gallery
    shown: list[Picture]
    filters: Filters
    dense: Floats  # (pictures, h, w, 3)
    attention: list[Attention] = field(default_factory=list)
    rollout: Floats | None = None  # (pictures, h, w)
    literal: Floats | None = None  # the same without the identity
    relevance: Relevance | None = None
    distance: AttentionDistance | None = None
    patch: tuple[int, int] = (0, 0)  # that looks, in the examples
    examples: list[Example] = field(default_factory=list)  # the nearest-looking head and the farthest-looking one
    similarity: Floats | None = None  # (h, w, h, w)
    not_here: list[str] = field(default_factory=list)


def look_inside(
    model: Model,
    gallery: Gallery,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    tokens: Sequence[Token] | None = None,
    say: Callable[[str], None] = lambda what: None,
) -> Findings:
    """All analyses; distance over all pictures, maps for a few that are spread over them."""
    chosen = _check(model, layers, heads, tokens)
    shown = gallery.spread(SHOWN)
    images = gallery.images(shown)
    _refuse_nonsense(model, images)
    say("filters and features")
    found = Findings(model, gallery, shown, filter_components(model), dense_colours(dense_features(model, images)))
    found.similarity = _tried(found, lambda: position_similarity(model))
    if not isinstance(model, VisionTransformer):
        found.not_here.append("Attention maps, rollout, relevance and attention distance: a ResNet has no attention.")
        return found
    say(f"attention in {counted(len(shown), 'picture')}")
    found.attention = [_attention(model, images, token, chosen, heads) for token in tokens or [default_token(model)]]
    found.rollout = rollout(model, images)
    found.literal = rollout(model, images, identity=False)
    found.relevance = _tried(found, lambda: _speaking(relevance(model, images)))
    say(f"attention distance over {counted(len(gallery.pictures), 'picture')}")
    found.distance = attention_distance(model, gallery.batches(AT_A_TIME))
    if model.config.patches > 1:
        found.patch = _brightest(found.rollout[0])
        found.examples = _examples(model, images[:1], found.distance, found.patch)
    return found


def _check(
    model: Model, layers: Sequence[int] | None, heads: Sequence[int] | None, tokens: Sequence[Token] | None
) -> Sequence[int] | None:
    """Mistakes come before the work; the layers that are shown."""
    if not isinstance(model, VisionTransformer):
        if layers or heads or tokens:
            raise DoesNotApply("a ResNet has no layers of attention, heads or tokens to choose from.")
        return None
    for token in tokens or ():
        query(model, token)
    views(model, layers)
    pick_heads(model, heads)
    if layers is not None or model.config.depth <= LAYERS:
        return layers
    return np.linspace(0, model.config.depth - 1, LAYERS).round().astype(int).tolist()


def _refuse_nonsense(model: Model, images: Tensor) -> None:
    """Weights of a run that diverged: no figure of them would mean anything."""
    with looking(model):
        answers = model(placed(images, model))
    if not answers.isfinite().all():
        raise WeightsError(
            "the model has no finite numbers for these pictures: there is nothing to see in it.",
            try_="other weights; of a run that diverged, an earlier checkpoint",
        )


def _tried(found: Findings, analysis: Callable[[], Found]) -> Found | None:
    try:
        return analysis()
    except DoesNotApply as reason:
        what = str(reason)
        found.not_here.append(what[0].upper() + what[1:])
        return None


def _speaking(found: Relevance) -> Relevance:
    if not found.maps.any():
        raise DoesNotApply(
            "relevance for a class: nothing in the pictures changes the answer, as with a head that is new, all zeros."
        )
    return found


def _attention(
    model: VisionTransformer, images: Tensor, token: Token, layers: Sequence[int] | None, heads: Sequence[int] | None
) -> Attention:
    maps = attention_maps(model, images, token=token, layers=layers, heads=heads)
    return Attention(token, tuple(views(model, layers)), tuple(pick_heads(model, heads)), maps)


def _brightest(weights: Floats) -> tuple[int, int]:
    """The patch that stands out, away from the border, where there is an inside."""
    h, w = weights.shape
    inside = np.full_like(weights, -1)
    inside[h > 2 : h - (h > 2), w > 2 : w - (w > 2)] = weights[h > 2 : h - (h > 2), w > 2 : w - (w > 2)]
    row, column = np.unravel_index(inside.argmax(), inside.shape)
    return int(row), int(column)


def _examples(
    model: VisionTransformer, image: Tensor, distance: AttentionDistance, patch: tuple[int, int]
) -> list[Example]:
    found = []
    for place in (distance.heads.argmin(), distance.heads.argmax()):
        index, head = (int(one) for one in np.unravel_index(place, distance.heads.shape))
        view = distance.views[index]
        maps = attention_maps(model, image, token=patch, layers=[view.layer], heads=[head])
        weights = maps[0, int(view.along == "columns"), 0]
        found.append(Example(view, head, weights, *by_distance(weights, patch, distance.stride)))
    return found
