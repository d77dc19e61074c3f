"""Masks at sampled points, bilinearly: logits of predicted masks, and membership of pixels in the given ones.

Points are (x, y) on 0 … 1 over the image, as in PointRend and Mask2Former. Beyond the border of the image, all is 0.

Shapes: B images, M masks, P points, h x w grid of logits, H x W pixels.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data.masks.ignore import IGNORE

OVERSAMPLED = 3  # times as many points are drawn as those of which the uncertain ones are taken
UNCERTAIN = 0.75  # share of the points that are the most uncertain of those; the rest is drawn anywhere


class Neighbours(NamedTuple):
    """The four pixels around each point, and the weights by which they are interpolated."""

    labels: Tensor  # (M, P, 4), class numbers
    weights: Tensor  # (M, P, 4); they sum to 1, but at the border

    def membership(self, classes: Tensor) -> Tensor:
        """Return how much each point is in the mask of a class, one for each row (M,): (M, P)."""
        return (self.weights * (self.labels == classes[:, None, None])).sum(dim=2)

    def labelled(self) -> Tensor:
        """Return how much each point counts, the share of the pixels around it that are not ignored: (M, P)."""
        ignored = (self.weights * (self.labels == IGNORE)).sum(dim=2)
        return 1 - ignored / self.weights.sum(dim=2)


def sample_logits(masks: Tensor, points: Tensor) -> Tensor:
    """Return the logits (M, C, P) of masks (M, C, h, w) at points (M, P, 2)."""
    return F.grid_sample(masks, 2 * points[:, :, None] - 1, align_corners=False)[..., 0]


def neighbours(targets: Tensor, images: Tensor, points: Tensor) -> Neighbours:
    """Return the pixels around points (M, P, 2) of targets (B, H, W); row m is of the image with index `images[m]`.

    Interpolated binary masks are what `grid_sample` gives, but no mask of each class has to be made.
    """
    height, width = targets.shape[1:]
    columns, across = _two_nearest(points[..., 0], width)  # (M, P, 2) each
    rows, down = _two_nearest(points[..., 1], height)
    labels = targets[images[:, None, None, None], rows[..., None], columns[:, :, None]]  # (M, P, 2, 2)
    return Neighbours(labels.flatten(2), (down[..., None] * across[:, :, None]).flatten(2))


def _two_nearest(position: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Return the indices of the pixels on either side of positions (M, P) on 0 … 1, and their weights: (M, P, 2)."""
    position = position * side - 0.5
    first = position.floor()
    fraction = position - first
    index = torch.stack([first, first + 1], dim=2).long()
    weights = torch.stack([1 - fraction, fraction], dim=2) * ((index >= 0) & (index < side))
    return index.clamp(0, side - 1), weights


def uncertain_points(masks: Tensor, targets: Tensor, images: Tensor, count: int) -> Tensor:
    """Draw `count` points for each predicted mask (M, h, w), most of them where its logit is closest to 0: (M, P, 2).

    Ignored pixels are not uncertain. Points come from torch's generator.
    """
    drawn = torch.rand(len(masks), OVERSAMPLED * count, 2, device=masks.device)
    certainty = sample_logits(masks[:, None], drawn)[:, 0].abs()
    nearest = (drawn * torch.tensor(targets.shape[:0:-1], device=drawn.device)).long()
    ignored = targets[images[:, None], nearest[..., 1], nearest[..., 0]] == IGNORE
    uncertain = int(UNCERTAIN * count)
    chosen = certainty.masked_fill(ignored, torch.inf).topk(uncertain, dim=1, largest=False).indices
    anywhere = torch.rand(len(masks), count - uncertain, 2, device=masks.device)
    return torch.cat([drawn.gather(1, chosen[..., None].expand(-1, -1, 2)), anywhere], dim=1)
