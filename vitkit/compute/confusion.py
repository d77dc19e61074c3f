"""Confusion matrices of masks: how many pixels of each target class were predicted to be of each class.

Shapes: B images, K classes.
"""

import torch
from torch import Tensor

from vitkit.data.masks.ignore import IGNORE


def confusion_matrices(predicted: Tensor, target: Tensor, classes: int) -> Tensor:
    """Count the pixels of masks (B, …) by class: (B, K, K) int64, target classes in rows, predicted in columns.

    Pixels whose target class is ignored count nowhere.
    """
    number = len(target)
    known = target != IGNORE
    # ignored pixels go to a cell of their own: selecting the others would make the host wait for their number
    cell = torch.where(known, target.long() * classes + predicted.long(), classes * classes)
    cell = cell.flatten(1) + torch.arange(number, device=cell.device)[:, None] * (classes * classes + 1)
    counts = torch.bincount(cell.flatten(), minlength=number * (classes * classes + 1))
    return counts.view(number, -1)[:, :-1].unflatten(1, (classes, classes))


def intersection_over_union(confusion: Tensor) -> Tensor:
    """Return the IoU of each class (K,) of a confusion matrix (K, K); nan where no target and no prediction has it."""
    counts = confusion.double()
    intersection = counts.diagonal()
    union = counts.sum(dim=0) + counts.sum(dim=1) - intersection
    return torch.where(union > 0, intersection / union, torch.nan)
