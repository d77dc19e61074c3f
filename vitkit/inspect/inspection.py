"""All analyses of one model on some images, as plain arrays, with the reason for each that does not apply.

Shapes: B shown images, L attention layers, H heads, h x w patch grid.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from torch import Tensor

from vitkit.errors import WeightsError
from vitkit.inspect.attention import AttentionLayer, attention_layers, attention_maps, select_heads
from vitkit.inspect.completions import Completions, Sampling, completions
from vitkit.inspect.dense import dense_colours, dense_features
from vitkit.inspect.distance import AttentionDistance, attention_distance, weight_by_distance
from vitkit.inspect.embeddings import Filters, filter_components, position_similarity
from vitkit.inspect.heatmaps import Floats
from vitkit.inspect.image_set import ImageSet, InspectedImage
from vitkit.inspect.inference import MAX_BATCH, DoesNotApply, as_model_input, eval_mode
from vitkit.inspect.masks import InspectedMask, inspect_masks
from vitkit.inspect.query_token import Token, default_tokens, middle_patch, query_weights
from vitkit.inspect.relevance import Relevance, relevance
from vitkit.inspect.rollout import rollout
from vitkit.inspect.unit_attention import unit_attention, unit_layers
from vitkit.model.build import Model, TokenModel
from vitkit.model.resnet import ResNet
from vitkit.model.segmenter import Segmenter
from vitkit.text import counted

SHOWN_IMAGES = 6  # images with maps of their own
SHOWN_LAYERS = 12  # of a deeper model, this many evenly spaced layers by default

Result = TypeVar("Result")


@dataclass(frozen=True)
class TokenAttention:
    token: Token
    attention_layers: tuple[AttentionLayer, ...]
    heads: tuple[int, ...]
    maps: Floats  # (B, L, H, h, w)


@dataclass(frozen=True)
class HeadExample:
    """The attention of one query patch in one head, in one image."""

    attention_layer: AttentionLayer
    head: int
    weights: Floats  # (h, w)
    shares: Floats  # weight 0, 1, 2 … patches away
    mean: float  # distance in pixels


@dataclass
class Inspection:
    """The results; those that do not apply are None, for a reason in `not_applicable`."""

    model: Model
    image_set: ImageSet
    shown: list[InspectedImage]
    filters: Filters | None
    dense_colours: Floats  # (B, h, w, 3)
    attention: list[TokenAttention] = field(default_factory=list)
    rollout: Floats | None = None  # (B, h, w)
    rollout_without_identity: Floats | None = None
    relevance: Relevance | None = None
    distance: AttentionDistance | None = None
    query_patch: tuple[int, int] = (0, 0)  # of the examples
    examples: list[HeadExample] = field(default_factory=list)  # the heads of least and greatest distance
    similarity: Floats | None = None  # (h, w, h, w)
    completions: Completions | None = None
    masks: list[InspectedMask] | None = None  # of the shown images
    not_applicable: list[str] = field(default_factory=list)


def inspect_model(
    model: Model,
    image_set: ImageSet,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    tokens: Sequence[Token] | None = None,
    sampling: Sampling | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> Inspection:
    """Run all analyses: attention distance over all images, maps for a few evenly spaced ones.

    `sampling` is asked for: a model that completes no images is then an error.
    """
    shown_layers = _check_options(model, layers, heads, tokens)
    shown = image_set.evenly_spaced(SHOWN_IMAGES)
    images = image_set.batch(shown)
    _check_finite(model, images)
    log("filters and features")
    colours = dense_colours(dense_features(model, images))
    inspection = Inspection(model, image_set, shown, None, colours)
    if sampling is not None or model.generates:
        log(f"completing {counted(len(shown), 'image')}")
        if sampling is not None:
            inspection.completions = completions(model, images, sampling)
        else:
            inspection.completions = _if_applicable(inspection, lambda: completions(model, images, Sampling()))
    if isinstance(model, Segmenter):
        log(f"masks of {counted(len(shown), 'image')}")
        inspection.masks = inspect_masks(model, images)
    inspection.filters = _if_applicable(inspection, lambda: filter_components(model))
    inspection.similarity = _if_applicable(inspection, lambda: position_similarity(model))
    if not isinstance(model, TokenModel):
        if isinstance(model, ResNet) and unit_layers(model):
            log(f"attention in {counted(len(shown), 'image')}")
            inspection.attention = [_unit_attention(model, images)]
            log(f"attention distance over {counted(len(image_set.images), 'image')}")
            parts = [unit_attention(model, batch)[1] for batch in image_set.batches(MAX_BATCH)]
            inspection.distance = replace(parts[0], per_image=np.concatenate([part.per_image for part in parts]))
            reason = "Rollout and relevance: convolutions mix pixels between the attention layers of a ResNet."
        else:
            reason = f"Attention maps, rollout, relevance and attention distance: {model.kind} has no attention."
        inspection.not_applicable.append(reason)
        return inspection
    log(f"attention in {counted(len(shown), 'image')}")
    inspection.attention = [
        _token_attention(model, images, token, shown_layers, heads) for token in tokens or default_tokens(model)
    ]
    inspection.rollout = rollout(model, images)
    inspection.rollout_without_identity = rollout(model, images, identity=False)
    inspection.relevance = _if_applicable(inspection, lambda: _check_relevance(relevance(model, images)))
    log(f"attention distance over {counted(len(image_set.images), 'image')}")
    batches = image_set.batches(MAX_BATCH)
    inspection.distance = _if_applicable(inspection, lambda: attention_distance(model, batches))
    if inspection.distance is not None and model.config.patches > 1:
        causal = model.config.input_delay > 0  # what an early pixel sees is little
        inspection.query_patch = middle_patch(model) if causal else _brightest_patch(inspection.rollout[0])
        inspection.examples = _head_examples(model, images[:1], inspection.distance, inspection.query_patch)
    return inspection


def _check_options(
    model: Model, layers: Sequence[int] | None, heads: Sequence[int] | None, tokens: Sequence[Token] | None
) -> Sequence[int] | None:
    """Check the options before any work and return the layers to show."""
    if not isinstance(model, TokenModel):
        if layers or heads or tokens:
            shown = isinstance(model, ResNet) and unit_layers(model)
            choice = "all of its attention layers and heads are shown" if shown else "it has none to show"
            raise DoesNotApply(f"layers, heads and tokens cannot be chosen for {model.kind}: {choice}.")
        return None
    for token in tokens or ():
        query_weights(model, token)
    attention_layers(model, layers)
    select_heads(model, heads)
    if layers is not None or model.config.depth <= SHOWN_LAYERS:
        return layers
    return np.linspace(0, model.config.depth - 1, SHOWN_LAYERS).round().astype(int).tolist()


def _check_finite(model: Model, images: Tensor) -> None:
    """Raise a WeightsError for the weights of a run that diverged: their figures would mean nothing."""
    with eval_mode(model):
        logits = model(as_model_input(images, model))
    if not logits.isfinite().all():
        raise WeightsError(
            "the model's outputs for these images are not finite, so there is nothing to inspect.",
            try_="other weights; of a run that diverged, an earlier checkpoint",
        )


def _if_applicable(inspection: Inspection, analysis: Callable[[], Result]) -> Result | None:
    try:
        return analysis()
    except DoesNotApply as error:
        reason = str(error)
        inspection.not_applicable.append(reason[0].upper() + reason[1:])
        return None


def _check_relevance(result: Relevance) -> Relevance:
    if not result.maps.any():
        raise DoesNotApply(
            "relevance for a class: the logits do not depend on the images, as with a new head, whose weights are zero."
        )
    return result


def _token_attention(
    model: TokenModel, images: Tensor, token: Token, layers: Sequence[int] | None, heads: Sequence[int] | None
) -> TokenAttention:
    maps = attention_maps(model, images, token=token, layers=layers, heads=heads)
    return TokenAttention(token, tuple(attention_layers(model, layers)), tuple(select_heads(model, heads)), maps)


def _unit_attention(model: ResNet, images: Tensor) -> TokenAttention:
    """Return maps of a ResNet's attention layers, evenly spaced ones of many."""
    maps, distance = unit_attention(model, images)
    layers = distance.attention_layers
    chosen = np.unique(np.linspace(0, len(layers) - 1, SHOWN_LAYERS).round().astype(int))
    return TokenAttention("mean", tuple(layers[index] for index in chosen), (*range(maps.shape[2]),), maps[:, chosen])


def _brightest_patch(weights: Floats) -> tuple[int, int]:
    """Return the row and column of the largest weight, borders left out where there is an interior."""
    h, w = weights.shape
    interior = np.full_like(weights, -1)
    interior[h > 2 : h - (h > 2), w > 2 : w - (w > 2)] = weights[h > 2 : h - (h > 2), w > 2 : w - (w > 2)]
    row, column = np.unravel_index(interior.argmax(), interior.shape)
    return int(row), int(column)


def _head_examples(
    model: TokenModel, image: Tensor, distance: AttentionDistance, patch: tuple[int, int]
) -> list[HeadExample]:
    examples = []
    for flat_index in (distance.per_head.argmin(), distance.per_head.argmax()):
        index, head = (int(one) for one in np.unravel_index(flat_index, distance.per_head.shape))
        layer = distance.attention_layers[index]
        maps = attention_maps(model, image, token=patch, layers=[layer.block], heads=[head])
        weights = maps[0, int(layer.axis == "columns"), 0]
        examples.append(HeadExample(layer, head, weights, *weight_by_distance(weights, patch, distance.stride)))
    return examples
