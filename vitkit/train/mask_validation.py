"""Validation of segmentation during training: loss, mean IoU and pixel accuracy at the size of the model's input.

The final score is at the size of each image (`vitkit.evaluate.segmentation`), where thin things count for less.

Shapes: B images, C channels, K classes, (height, width) of the model's input.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.compute.confusion import confusion_matrices, intersection_over_union
from vitkit.compute.kept_inputs import KeptInputs
from vitkit.compute.pipeline import Outputs, compute_batches
from vitkit.compute.split_logits import forward_function
from vitkit.config.schema import Fit
from vitkit.data.evaluation_batches import evaluation_batches
from vitkit.data.masked_transforms import MaskedEvalTransform, split_mask
from vitkit.data.masks.ignore import IGNORE
from vitkit.data.sources.dataset import DataError, Split
from vitkit.data.split_dataset import SplitDataset
from vitkit.devices import TrainPrecision
from vitkit.model.segmenter import Segmenter


class MaskScores:
    """The sums over a rank's validation images that the metrics are made of: loss, pixels and confusion matrix."""

    def __init__(self, config: Fit, split: Split, kept: KeptInputs, workers: int):
        self.config, self.split, self.kept, self.workers = config, split, kept, workers

    def sums(
        self,
        model: Segmenter,
        device: torch.device,
        precision: TrainPrecision,
        batch: int,
        rank: int,
        world_size: int,
    ) -> list[float]:
        transform = MaskedEvalTransform(image=model.config.image, preprocessing=model.metadata.preprocessing)
        dataset = SplitDataset(split=self.split, transform=transform, channels=model.config.channels)
        loaded = self.kept.batches(
            dataset,
            device,
            (rank, world_size, batch),
            lambda: evaluation_batches(
                dataset,
                batch,
                workers=self.workers,
                rank=rank,
                world_size=world_size,
                pin_memory=device.type == "cuda",
                max_failed=self.config.max_failed,
            ),
        )
        forward, classes = forward_function(model, precision), model.config.classes

        def measure(joined: Tensor) -> Outputs:
            images, masks = split_mask(joined)
            scores = F.interpolate(forward(images).float(), masks.shape[1:], mode="bilinear")
            losses = F.nll_loss(model.log_probabilities(scores), masks.long(), ignore_index=IGNORE, reduction="none")
            return losses.sum(dim=(1, 2)), confusion_matrices(scores.max(dim=1).indices, masks, classes)

        loss, confusion = 0.0, torch.zeros(classes, classes, dtype=torch.int64)
        training = model.training
        model.eval()
        try:
            with torch.no_grad():
                for computed in compute_batches(loaded, batch, measure, device):
                    if computed.outputs is not None:
                        losses, matrices = computed.outputs
                        loss += losses.double().sum().item()
                        confusion += matrices.sum(dim=0)
        finally:
            model.train(training)
        return [loss, *confusion.flatten().double().tolist()]

    def metrics(self, sums: list[float]) -> dict[str, float]:
        """Return the metrics of the sums over all ranks."""
        confusion = torch.tensor(sums[1:], dtype=torch.float64)
        side = round(len(confusion) ** 0.5)
        confusion = confusion.view(side, side)
        pixels = confusion.sum().item()
        if not pixels:
            raise DataError(
                "no pixel of the validation images has a class, so there is no score to choose by.",
                try_=f"vitkit check {self.config.data} lists broken images and masks that ignore every pixel",
            )
        mean_iou = intersection_over_union(confusion).nanmean().item()
        accuracy = confusion.diagonal().sum().item() / pixels
        return {"score": mean_iou, "loss": sums[0] / pixels, "mean_iou": mean_iou, "pixel_accuracy": accuracy}
