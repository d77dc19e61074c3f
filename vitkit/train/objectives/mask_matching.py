"""The matching of queries with masks: the assignment of least cost (DETR), by SciPy's solver on the host.

The cost of a pair is that of the losses: classification, cross-entropy of the mask and dice, on points that all masks
of an image share.

Shapes: B images, Q queries, K classes, P points, h x w grid of logits.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.errors import ConfigError
from vitkit.model.mask_queries import QueryPrediction
from vitkit.train.objectives.mask_points import Neighbours, neighbours, sample_logits

CLASS_WEIGHT, MASK_WEIGHT, DICE_WEIGHT = 2.0, 5.0, 5.0  # of Mask2Former and EoMT, in the cost and in the loss


class Matches(NamedTuple):
    """Pairs of a query and a class whose pixels it is to find, for all images of a batch: (M,) each."""

    images: Tensor
    queries: Tensor
    classes: Tensor


def check_solver() -> None:
    """Raise where SciPy, which has the solver, is not installed."""
    try:
        import scipy.optimize  # noqa: F401  late: only training by matched masks needs it
    except ImportError as error:
        raise ConfigError(
            "training mask queries needs SciPy, which is not installed",
            try_=['pip install "vitkit[dense]"', "--set segment.head=linear"],
        ) from error


def match(prediction: QueryPrediction, targets: Tensor, points: int) -> Matches:
    """Match the queries of each image with the classes of its targets (B, H, W); points come from torch's generator.

    Costs are computed on the device and read once. A class that an image does not have is matched with no query, and of
    more classes than queries some are left over.
    """
    from scipy.optimize import linear_sum_assignment

    device, batch = targets.device, len(targets)
    classes = prediction.classes.shape[2] - 1
    shared = torch.rand(batch, points, 2, device=device)
    around = neighbours(targets, torch.arange(batch, device=device), shared)
    costs = pair_costs(prediction, around, shared, classes)
    present = torch.zeros(batch, 256, dtype=torch.bool, device=device).scatter_(1, targets.flatten(1).long(), True)
    matrices = costs.cpu().numpy()  # (B, Q, K): the host waits for the device here
    pairs = []
    for image, (matrix, occurs) in enumerate(zip(matrices, present[:, :classes].cpu().numpy(), strict=True)):
        available = np.flatnonzero(occurs)
        queries, columns = linear_sum_assignment(matrix[:, available])
        pairs.append(np.stack([np.full(len(queries), image), queries, available[columns]]))
    return Matches(*torch.from_numpy(np.concatenate(pairs, axis=1)).to(device).unbind())


@torch.no_grad()
def pair_costs(prediction: QueryPrediction, around: Neighbours, points: Tensor, classes: int) -> Tensor:
    """Return the cost of every query for every class (B, Q, K), finite, at points (B, P, 2) of each image."""
    logits = sample_logits(prediction.masks.float(), points)  # (B, Q, P)
    labelled = around.labelled()  # (B, P)
    members = class_membership(around, classes)  # (B, P, K)
    class_cost = -prediction.classes.float().softmax(dim=-1)[..., :-1]
    # Σ t·softplus(-x) + (1 - t)·softplus(x) = Σ softplus(x) - t·x
    cross_entropy = F.softplus(logits) @ labelled[..., None] - logits @ members  # (B, Q, K)
    cross_entropy = cross_entropy / labelled.sum(dim=1).clamp(min=1)[:, None, None]
    probabilities = logits.sigmoid()
    sizes = probabilities @ labelled[..., None] + members.sum(dim=1)[:, None]  # (B, Q, K)
    dice = 1 - (2 * probabilities @ members + 1) / (sizes + 1)
    cost = MASK_WEIGHT * cross_entropy + CLASS_WEIGHT * class_cost + DICE_WEIGHT * dice
    worst = torch.finfo(cost.dtype).max  # a diverged prediction is matched where nothing else is left
    return cost.nan_to_num(worst, worst, worst)


def class_membership(around: Neighbours, classes: int) -> Tensor:
    """Return how much each point is in the mask of each class: (B, P, K)."""
    numbers, members = torch.arange(classes, device=around.labels.device), None
    for labels, weights in zip(around.labels.unbind(2), around.weights.unbind(2), strict=True):
        part = weights[..., None] * (labels[..., None] == numbers)
        members = part if members is None else members + part
    assert members is not None
    return members
