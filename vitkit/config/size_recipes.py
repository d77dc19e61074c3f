"""Recipes for ordinary data, by the number of images; they are chosen where no recipe is named. Also those of the demo.

A docstring states the command; `expect` above it, what we measured.
"""

from dataclasses import replace

from vitkit.config.expectations import Figure, expect, ours
from vitkit.config.pretraining_recipes import igpt_pretrain, masked_patch_pretrain
from vitkit.config.schema import SGD, AdamW, Augmentation, Fit, Masked, Schedule

SEEDS = "AugReg's weights, three seeds, docs/transfer.md"

# For ordinary sizes of data: as Table 4, but with a batch size and length for the number of images, and at the image
# size of the weights.


@expect(ours("92.6 ± 0.3", "20 classes of CIFAR-100 from 50 images each", "Ti/16", "ImageNet-1k", SEEDS))
def small_transfer(model: str = "Ti/16") -> Fit:
    """Fine-tune on up to 2,000 images: 30 epochs, batch 32.

    vitkit fit photos/      rate, length and crop were chosen on validation images of five datasets: docs/transfer.md
    """
    return _sized_transfer(model, batch=32, epochs=30, lr=0.003)


@expect(ours("91.3 ± 0.2", "Pets, 3,680 images", "Ti/16", "ImageNet-1k", f"{SEEDS}; 17 s on an H200"))
def medium_transfer(model: str = "Ti/16") -> Fit:
    """Fine-tune on 2,000 to 20,000 images: 12 epochs, batch 128.

    vitkit fit photos/      rate, length and crop were chosen on validation images of five datasets: docs/transfer.md
    """
    return _sized_transfer(model, batch=128, epochs=12, lr=0.01)


@expect(ours("85.1 ± 0.3", "CIFAR-100 from 205 images of each class", "Ti/16", "ImageNet-1k", SEEDS))
def large_transfer(model: str = "Ti/16") -> Fit:
    """Fine-tune on 20,000 images or more: 8 epochs, batch 512, mixup 0.1 as in BiT's rule.

    vitkit fit photos/      rate, length and crop were chosen on validation images of five datasets: docs/transfer.md
    """
    config = _sized_transfer(model, batch=512, epochs=8, lr=0.03)
    return replace(config, augment=replace(config.augment, mixup=0.1))


def _sized_transfer(model: str, *, batch: int, epochs: float, lr: float) -> Fit:
    return Fit(
        model=model,
        start="auto",
        batch=batch,
        epochs=epochs,
        lr=lr,
        optimizer=SGD(momentum=0.9),
        clip=1.0,
        lr_candidates=(0.3 * lr, lr, round(3 * lr, 6)),
        schedule=Schedule(kind="cosine", warmup=0.1),
        augment=Augmentation(crop=(0.25, 1.0)),
    )


# For weights that were trained without class labels. MAE's authors fine-tune B/16 at 2e-3 with batches of 1,024, CLIP's
# fine-tuners (Dong et al. 2022) at 6e-4 with 2,048; these rates lie between, scaled by the root of the batch, as usual
# for Adam. Decay 0.75 is that of MAE's and CLIP's L/14.


def small_layerwise_transfer(model: str = "B/16") -> Fit:
    """Fine-tune self-supervised or CLIP weights on up to 2,000 images: 30 epochs of AdamW, rates decay by layer.

    vitkit fit photos/ --weights hf:facebook/dinov2-base      rates from the literature, not measured on such weights
    """
    return _layerwise_transfer(small_transfer(model), lr=1e-4)


def medium_layerwise_transfer(model: str = "B/16") -> Fit:
    """Fine-tune self-supervised or CLIP weights on 2,000 to 20,000 images: 12 epochs of AdamW, rates decay by layer.

    vitkit fit photos/ --weights hf:facebook/dinov2-base      rates from the literature, not measured on such weights
    """
    return _layerwise_transfer(medium_transfer(model), lr=2e-4)


def large_layerwise_transfer(model: str = "B/16") -> Fit:
    """Fine-tune self-supervised or CLIP weights on 20,000 images or more: 8 epochs of AdamW, rates decay by layer.

    vitkit fit photos/ --weights hf:facebook/dinov2-base      rates from the literature, not measured on such weights
    """
    return _layerwise_transfer(large_transfer(model), lr=4e-4)


def _layerwise_transfer(config: Fit, *, lr: float) -> Fit:
    return replace(
        config,
        lr=lr,
        lr_candidates=(round(0.3 * lr, 6), lr, round(3 * lr, 6)),
        optimizer=AdamW(weight_decay=0.05),
        layer_decay=0.75,
    )


@expect(ours("11.8", "Pets, 3,680 images", "Ti/16", "nothing", "pre-trained weights give 91.3"))
def small_scratch(model: str = "Ti/16") -> Fit:
    """Train from scratch on up to 20,000 images: 100 epochs of AdamW with augmentation; expect little.

    vitkit fit photos/ --weights none
    """
    return _scratch(model, batch=128, epochs=100)


def medium_scratch(model: str = "Ti/16") -> Fit:
    """Train from scratch on 20,000 to 500,000 images: 100 epochs of AdamW with augmentation.

    vitkit fit photos/ --weights none
    """
    return _scratch(model, batch=512, epochs=100)


@expect(
    Figure(
        value="76.5",
        on="ImageNet",
        model="S/16",
        pretrained_on="nothing",
        source="big_vision, Beyer et al. 2022",
        note="with --set options.pool=gap options.positions=sincos",
    ),
    data="ImageNet",
)
def large_scratch(model: str = "S/16") -> Fit:
    """Train from scratch on 500,000 images or more: big_vision's 90 epochs of ImageNet (Beyer et al. 2022).

    vitkit fit imagenet/ --weights none --model S/16
    """
    return replace(
        _scratch(model, batch=1024, epochs=90),
        schedule=Schedule(kind="cosine", warmup=10_000),
        label_smoothing=0.0,
        augment=Augmentation(randaugment=(2, 10), mixup=0.2),
    )


def _scratch(model: str, *, batch: int, epochs: float) -> Fit:
    return Fit(
        model=model,
        weights="none",  # without an image size: it follows the data
        batch=batch,
        epochs=epochs,
        lr=1e-3,
        lr_candidates=(3e-4, 1e-3, 3e-3),
        optimizer=AdamW(weight_decay=0.1),
        clip=1.0,
        schedule=Schedule(kind="cosine", warmup=0.1),
        augment=Augmentation(crop=(0.2, 1.0), randaugment=(2, 9), mixup=0.2),
        label_smoothing=0.1,
    )


def small_masked_patch(model: str = "Ti/16") -> Fit:
    """Pre-train by masked patch prediction on a dataset of any size: 100 epochs, batch 256.

    vitkit pretrain photos/ --objective masked-patch
    """
    return replace(
        masked_patch_pretrain(model),
        image=None,  # follows the data
        batch=256,
        steps=None,
        epochs=100,
        lr=1e-3,
        clip=1.0,
        optimizer=AdamW(weight_decay=0.05),
        schedule=Schedule(kind="cosine", warmup=0.1),
        augment=Augmentation(crop=(0.25, 1.0)),
    )


def small_next_pixel(model: str = "iGPT-S/32") -> Fit:
    """Pre-train an iGPT by next-pixel prediction on a dataset of any size: 100 epochs, batch 128.

    vitkit pretrain photos/ --objective next-pixel      a small one for a CPU: --model iGPT-mu/16
    """
    return replace(
        igpt_pretrain(model),
        steps=None,
        epochs=100,
        lr=1e-3,
        clip=1.0,
        schedule=Schedule(kind="cosine", warmup=0.05),
        augment=Augmentation(crop=(0.5, 1.0)),
    )


def small_masked_pixel(model: str = "iGPT-S/32") -> Fit:
    """Pre-train iGPT's BERT-style variant by masked-pixel prediction, 15 % hidden: 100 epochs, batch 128.

    vitkit pretrain photos/ --objective masked-pixel
    """
    return replace(small_next_pixel(model), objective="masked-pixel", masked=Masked(rate=0.15))


# For the demo: a small model on 28 x 28 grey images, in seconds on two cores.

DEMO = {"depth": 3, "width": 96, "mlp": 384, "heads": 4, "pool": "gap"}


def demo_pretrain(model: str = "mu/7") -> Fit:
    """Pre-train by masked patch prediction on fashion's 6,000 training images: 5 epochs.

    vitkit pretrain fashion --recipe demo_pretrain
    """
    return Fit(
        model=model,
        options=DEMO,
        weights="none",
        image=(28, 28),
        channels=1,
        objective="masked-patch",
        batch=64,
        epochs=5,
        lr=2e-3,
        optimizer=AdamW(weight_decay=0.05),
        schedule=Schedule(kind="cosine", warmup=0.1),
        augment=Augmentation(crop=None),
    )


def demo_fit(model: str = "mu/7") -> Fit:
    """Fine-tune on fashion's classes after demo_pretrain: 15 epochs of AdamW.

    vitkit fit fashion --recipe demo_fit --weights runs/demo/pretrained
    """
    return Fit(
        model=model,
        options=DEMO,  # that of the weights, for what a run costs
        image=(28, 28),
        channels=1,
        batch=64,
        epochs=15,
        lr=3e-3,
        optimizer=AdamW(weight_decay=0.1),
        schedule=Schedule(kind="cosine", warmup=0.1),
        label_smoothing=0.1,
        augment=Augmentation(crop=None),
    )
