"""The masks of a segmenter, and where they come from: which query looks where, or the scores of each class.

A cell of the score grid belongs to the query that adds most to the score of the cell's class.

Shapes: B images, K classes, Q queries, H heads, T tokens, N = h·w patches, h' x w' grid of scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.compute.upsample import upsample_mask
from vitkit.inspect.attention import visit_attention
from vitkit.inspect.inference import DoesNotApply, as_model_input, at_least_float32, batch_size, eval_mode
from vitkit.inspect.query_token import on_patch_grid
from vitkit.model.build import Model
from vitkit.model.segmenter import Segmenter
from vitkit.text import counted

Floats = NDArray[np.float32]

SHOWN = 8  # queries, or classes, of an image: those with most of it


@dataclass(frozen=True, eq=False)
class FoundClass:
    """A class that the mask has."""

    number: int
    share: float  # of the mask's pixels
    probability: Floats  # (h', w')


@dataclass(frozen=True, eq=False)
class FoundQuery:
    """A query that cells of the score grid belong to."""

    query: int
    number: int  # of the class that it is likeliest of
    confidence: float  # the probability of that class; the others' is shared by them and "no class"
    share: float  # of the cells
    mask: Floats  # (h', w') the probability that a cell is in its mask
    attention: Floats  # (h, w) of its weights for the patches in the last block, on average over the heads


@dataclass(frozen=True, eq=False)
class InspectedMask:
    mask: NDArray[np.uint8]  # at the size of the model's input
    classes: list[FoundClass]  # all that it has, those with most pixels first
    queries: list[FoundQuery]  # of the head "queries": those with most cells, SHOWN at most
    winners: int  # queries that have a cell at all


def inspect_masks(model: Model, images: Tensor) -> list[InspectedMask]:
    """Return the masks of images (B, C, height, width), preprocessed, or raise DoesNotApply."""
    if not isinstance(model, Segmenter):
        raise DoesNotApply(f"masks: {model.kind} gives each image one answer, and not each pixel.")
    with eval_mode(model):
        return [found for batch in images.split(batch_size(model)) for found in _of_batch(model, batch)]


def _of_batch(model: Segmenter, images: Tensor) -> list[InspectedMask]:
    if model.config.head == "linear":
        return [_inspected(model, scores, [], 0) for scores in at_least_float32(model(as_model_input(images, model)))]
    scores, seen = model(as_model_input(images, model), capture=("class_logits", "mask_logits"))
    classes = at_least_float32(seen["class_logits"]).softmax(-1)[..., :-1]  # (B, Q, K), without "no class"
    masks = at_least_float32(seen["mask_logits"]).sigmoid()  # (B, Q, h', w')
    found = []
    for one in zip(scores, classes, masks, _attention_of_queries(model, images), strict=True):
        queries, winners = _queries(*one)
        found.append(_inspected(model, one[0], queries, winners))
    return found


def _inspected(model: Segmenter, scores: Tensor, queries: list[FoundQuery], winners: int) -> InspectedMask:
    """Return the mask of an image from its scores (K, h', w'), and its classes."""
    mask = upsample_mask(scores, model.config.image).cpu().numpy()
    probabilities = model.log_probabilities(scores[None])[0].exp().float().cpu().numpy()
    counts = np.bincount(mask.ravel(), minlength=len(scores))
    order = np.argsort(-counts, kind="stable")[: int((counts > 0).sum())]
    classes = [FoundClass(int(one), float(counts[one] / mask.size), probabilities[one]) for one in order]
    return InspectedMask(mask, classes, queries, winners)


def _queries(scores: Tensor, classes: Tensor, masks: Tensor, attention: Tensor) -> tuple[list[FoundQuery], int]:
    """Return the queries with most cells, and how many have any, from probabilities (Q, K) and (Q, h', w')."""
    claims = classes[:, scores.argmax(0)] * masks  # (Q, h', w'): what each query adds to the score of a cell's class
    cells = torch.bincount(claims.argmax(0).flatten(), minlength=len(claims)).cpu()
    order = cells.argsort(descending=True, stable=True)[: min(SHOWN, int((cells > 0).sum()))]
    found = []
    for query in order.tolist():
        confidence, number = classes[query].max(0)
        share = float(cells[query]) / claims[0].numel()
        own_mask, own_attention = (one[query].float().cpu().numpy() for one in (masks, attention))
        found.append(FoundQuery(query, int(number), float(confidence), share, own_mask, own_attention))
    return found, int((cells > 0).sum())


def _attention_of_queries(model: Segmenter, images: Tensor) -> Tensor:
    """Return the attention of the queries over the patches in the last block: (B, Q, h, w)."""
    maps: list[Tensor] = []

    def collect(_: int, weights: Tensor) -> None:  # (b, H, Q + T, Q + T)
        maps.append(on_patch_grid(model, weights[:, :, : model.config.queries].mean(dim=1)))

    visit_attention(model, images, collect, layers=[model.config.depth - 1])
    return torch.cat(maps)


def describe_masks(model: Model, masks: Sequence[InspectedMask]) -> str:
    """Return on a line what all images together have."""
    classes = {one.number for found in masks for one in found.classes}
    line = f"{counted(len(classes), 'class', 'classes')} in {counted(len(masks), 'image')}"
    if not isinstance(model, Segmenter) or model.config.head == "linear":
        return line
    low, high = min(found.winners for found in masks), max(found.winners for found in masks)
    winners = f"{low}" if low == high else f"{low} to {high}"
    return f"{line}; {winners} of {counted(model.config.queries, 'query', 'queries')} win pixels of an image"
