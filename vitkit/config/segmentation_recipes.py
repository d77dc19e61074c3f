"""Recipes of segmentation, by the number of images; they are chosen where the data have masks and no recipe is named.

AdamW with rates that decay by layer, as EoMT and the plain ViTs of MAE and DINOv2 are fine-tuned for segmentation. The
image size follows the data (`vitkit.config.image_size.choose_mask_size`). A docstring states the command.
"""

from vitkit.config.expectations import expect, ours
from vitkit.config.schema import AdamW, Augmentation, Fit, Schedule


@expect(
    ours("58.8 ± 0.1 mean IoU", "CamVid, 367 images at 352 x 480 px", "Ti/16", "ImageNet-1k", "linear head, 3 seeds"),
    ours("61.6 ± 0.2 mean IoU", "the same at 528 x 720 px", "Ti/16", "ImageNet-1k", "linear head, 3 seeds"),
    ours("59.9 ± 0.5 mean IoU", "CamVid at 352 x 480 px", "Ti/16", "ImageNet-1k", "50 epochs, mask queries, 3 seeds"),
)
def small_segmentation(model: str = "Ti/16") -> Fit:
    """Segment up to 2,000 images with masks: 100 epochs, batch 16.

    vitkit fit photos/      masks as PNG, COCO JSON or YOLO text: docs/segmentation.md; --set segment.head=queries
    """
    return _segmentation(model, batch=16, epochs=100, lr=5e-4)


@expect(
    ours(
        "97.9 ± 0.1 mean IoU",
        "Pets, animal against background, 3,680 images at 240 x 320 px",
        "Ti/16",
        "ImageNet-1k",
        "with --epochs 15, linear head, 3 seeds; the border of the trimaps counts nowhere",
    )
)
def medium_segmentation(model: str = "Ti/16") -> Fit:
    """Segment 2,000 to 20,000 images with masks: 40 epochs, batch 32.

    vitkit fit photos/      masks as PNG, COCO JSON or YOLO text: docs/segmentation.md; --set segment.head=queries
    """
    return _segmentation(model, batch=32, epochs=40, lr=5e-4)


def large_segmentation(model: str = "Ti/16") -> Fit:
    """Segment 20,000 images with masks or more: 16 epochs, batch 64.

    vitkit fit photos/      masks as PNG, COCO JSON or YOLO text: docs/segmentation.md; --set segment.head=queries
    """
    return _segmentation(model, batch=64, epochs=16, lr=1e-3)


def _segmentation(model: str, *, batch: int, epochs: float, lr: float) -> Fit:
    return Fit(
        model=model,
        objective="segment",
        resize="squash",
        batch=batch,
        epochs=epochs,
        lr=lr,
        lr_candidates=(round(0.3 * lr, 6), lr, round(3 * lr, 6)),
        optimizer=AdamW(weight_decay=0.05),
        layer_decay=0.8,
        schedule=Schedule(kind="cosine", warmup=0.05),
        augment=Augmentation(crop=None, aspect=(0.9, 1.1), scale=(0.5, 2.0), colour=0.5),
        clip=1.0,
    )
