"""The set loss of mask queries (Mask2Former, EoMT): every mask of an image has one query, the others say "no class".

Masks are compared at sampled points: cross-entropy and dice. Ignored pixels have no weight.

Shapes: B images, Q queries, K classes, M matched masks, P points, h x w grid of logits.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.model.mask_queries import QueryPrediction
from vitkit.train.objectives.base import LossAndMetrics
from vitkit.train.objectives.mask_matching import CLASS_WEIGHT, DICE_WEIGHT, MASK_WEIGHT, Matches, match
from vitkit.train.objectives.mask_points import neighbours, sample_logits, uncertain_points

NO_CLASS_WEIGHT = 0.1  # of a query without a mask: most of them
MOST_POINTS = 12_544  # 112 x 112


def set_loss(predictions: Sequence[QueryPrediction], targets: Tensor) -> LossAndMetrics:
    """Return the loss of all predictions of a batch, summed, for targets (B, H, W), and its parts, averaged over them.

    The losses of masks are means over the matched masks that this process has in its micro-batch. All predictions have
    as many, so they are computed as one batch, in a fraction of the launches.
    """
    count = len(predictions)
    together = QueryPrediction(*(torch.cat(parts) for parts in zip(*predictions, strict=True)))
    targets = targets.repeat(count, 1, 1)
    h, w = together.masks.shape[2:]
    points = min(MOST_POINTS, h * w)  # more than the grid has cells would tell nothing new
    matches = match(together, targets, points)
    classification = class_loss(together.classes, matches)
    cross_entropy, dice = mask_losses(together.masks, targets, matches, points)
    loss = count * (CLASS_WEIGHT * classification + MASK_WEIGHT * cross_entropy + DICE_WEIGHT * dice)
    parts = {"class_loss": classification, "mask_loss": cross_entropy, "dice_loss": dice}
    return loss, {name: part.detach() for name, part in parts.items()}


def class_loss(logits: Tensor, matches: Matches) -> Tensor:
    """Return the cross-entropy of class logits (B, Q, K + 1): the matched class, or none for queries without a mask."""
    none = logits.shape[2] - 1
    targets = torch.full(logits.shape[:2], none, device=logits.device)
    targets[matches.images, matches.queries] = matches.classes
    weights = torch.ones(none + 1, device=logits.device)
    weights[none] = NO_CLASS_WEIGHT
    return F.cross_entropy(logits.float().transpose(1, 2), targets, weights)


def mask_losses(masks: Tensor, targets: Tensor, matches: Matches, points: int) -> tuple[Tensor, Tensor]:
    """Return cross-entropy and dice of the matched ones of masks (B, Q, h, w), averaged over all of the batch."""
    if not len(matches.images):  # a zero that every parameter of the masks has a gradient of, as DDP waits for all
        zero = 0.0 * masks.float().sum()
        return zero, zero
    matched = masks[matches.images, matches.queries].float()  # (M, h, w)
    with torch.no_grad():
        where = uncertain_points(matched, targets, matches.images, points)
        around = neighbours(targets, matches.images, where)
        members, labelled = around.membership(matches.classes), around.labelled()
    logits = sample_logits(matched[:, None], where)[:, 0]
    cross_entropy, dice = point_cross_entropy(logits, members, labelled), dice_loss(logits, members, labelled)
    return cross_entropy.mean(), dice.mean()


def point_cross_entropy(logits: Tensor, members: Tensor, labelled: Tensor) -> Tensor:
    """Return the sigmoid cross-entropy of each mask over its labelled points: (M, P) each → (M,)."""
    # softplus(x) - t·x is the cross-entropy of a target t, without its overflow
    return (F.softplus(logits) * labelled - logits * members).sum(dim=1) / labelled.sum(dim=1).clamp(min=1)


def dice_loss(logits: Tensor, members: Tensor, labelled: Tensor) -> Tensor:
    """Return 1 - (2·|A ∩ B| + 1) / (|A| + |B| + 1) of each mask over its labelled points: (M, P) each → (M,)."""
    probabilities = logits.sigmoid()
    both = (probabilities * members).sum(dim=1)
    return 1 - (2 * both + 1) / ((probabilities * labelled).sum(dim=1) + members.sum(dim=1) + 1)
