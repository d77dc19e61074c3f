"""Recipes: functions that return the settings of a run, named after the paper's rows and after sizes of data.

A docstring states the command and what to expect; figures are the paper's, or "ours" where we measured them.
"""

import textwrap
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from vitkit.config.schema import SGD, AdamW, Augmentation, Fit, Masked, Schedule
from vitkit.errors import ConfigError, did_you_mean
from vitkit.model.config import ViTConfig
from vitkit.model.variants import configure

Row = TypeVar("Row")

RATES = (0.001, 0.003, 0.01, 0.03)  # Table 4's candidates for everything but ImageNet


# Pre-training: Table 3. Batch 4096, 10k steps of warm-up, Adam, 224 px; decoupled weight decay.

JFT = {  # model: (learning rate, epochs)
    "B/32": (8e-4, 7),
    "B/16": (8e-4, 7),
    "L/32": (6e-4, 7),
    "L/16": (4e-4, 14),
    "H/14": (3e-4, 14),
    "R50x1": (1e-3, 7),
    "R50x2": (1e-3, 7),
    "R101x1": (8e-4, 7),
    "R152x1": (6e-4, 7),
    "R152x2": (6e-4, 7),
    "R50+B/32": (8e-4, 7),
    "R50+B/16": (8e-4, 7),
    "R50+L/32": (2e-4, 7),
    "R50+L/16": (4e-4, 14),
}
IMAGENET21K = {"B/32": 90, "B/16": 90, "L/32": 90, "L/16": 90}  # model: epochs


def jft_pretrain(model: str = "B/16") -> Fit:
    """Pre-train as in Table 3, JFT-300M rows: 7 or 14 epochs, linear decay, weight decay 0.1.

    vitkit pretrain shards/ --recipe jft_pretrain --model L/16      paper: 87.76 on ImageNet after fine-tuning (L/16);
    H/14 88.55. 300 million images: 224 exaFLOPs for B/16, 4,262 for H/14 (Table 6); ours: not run
    """
    rate, epochs = _row(JFT, model, "JFT-300M")
    return _with_hidden_layer(_pretrain(model, rate, epochs=epochs, decay=0.1))


def imagenet21k_pretrain(model: str = "B/16") -> Fit:
    """Pre-train as in Table 3, ImageNet-21k rows: 90 epochs, linear decay, weight decay 0.03, dropout 0.1.

    vitkit pretrain shards/ --recipe imagenet21k_pretrain --model B/16      paper: 83.97 on ImageNet after fine-tuning
    at 384 px (B/16), 85.15 (L/16); ours: not run
    """
    epochs = _row(IMAGENET21K, model, "ImageNet-21k")
    return _with_hidden_layer(_with_dropout(_pretrain(model, 1e-3, epochs=epochs, decay=0.03)))


def imagenet_pretrain(model: str = "B/16") -> Fit:
    """Train ImageNet from scratch as in Table 3, last row: 300 epochs, cosine, weight decay 0.3, dropout 0.1, clip 1.

    vitkit pretrain imagenet/ --recipe imagenet_pretrain --model B/16      paper: 77.91 (B/16), 76.53 (L/16) after
    fine-tuning at 384 px; ours: not run
    """
    config = _pretrain(model, 3e-3, epochs=300, decay=0.3)
    return _with_hidden_layer(
        _with_dropout(replace(config, schedule=replace(config.schedule, kind="cosine"), clip=1.0))
    )


def augreg_pretrain(model: str = "S/16") -> Fit:
    """Pre-train with AugReg's middle setting: RandAugment (2, 15), mixup 0.2, dropout and stochastic depth 0.1.

    vitkit pretrain shards/ --recipe augreg_pretrain --model S/16      300 epochs of ImageNet-21k, cosine, weight decay
    0.1; theirs: see Figure 4 of Steiner et al. (2021); ours: not run
    """
    config = _pretrain(model, 1e-3, epochs=300, decay=0.1)
    return replace(
        config,
        schedule=replace(config.schedule, kind="cosine"),
        dropout=0.1,
        stochastic_depth=0.1,
        clip=1.0,
        options={"representation": False},  # AugReg drops the paper's hidden layer
        augment=Augmentation(randaugment=(2, 15), mixup=0.2),
    )


def masked_patch_pretrain(model: str = "B/16") -> Fit:
    """Predict the mean colour of masked patches (B.1.2), half of all: 1M steps, batch 4096, Adam 2e-4, cosine.

    vitkit pretrain shards/ --recipe masked_patch_pretrain      paper: 79.9 on ImageNet after fine-tuning (B/16, JFT),
    2 points over training from scratch; returns flatten after 100k steps; ours: not run at this size
    """
    return replace(
        _pretrain(model, 2e-4, steps=1_000_000, decay=0.1),
        objective="masked-patch",
        masked=Masked(),
        schedule=Schedule(kind="cosine", warmup=10_000),
    )


def _pretrain(model: str, rate: float, *, decay: float, epochs: float | None = None, steps: int | None = None) -> Fit:
    return Fit(
        model=model,
        weights="none",
        image=(224, 224),
        batch=4096,
        lr=rate,
        epochs=epochs,
        steps=steps,
        clip=0.0,
        optimizer=AdamW(weight_decay=decay),
        schedule=Schedule(kind="linear", warmup=10_000),
    )


def _with_hidden_layer(config: Fit) -> Fit:
    """Give a ViT the paper's pre-training head, a tanh layer as wide as the model (3.1); a ResNet's head is linear."""
    built = configure(config.model)
    return replace(config, options={"representation": built.width}) if isinstance(built, ViTConfig) else config


def _with_dropout(config: Fit) -> Fit:
    return replace(config, dropout=0.1) if isinstance(configure(config.model), ViTConfig) else config


# Fine-tuning: Table 4. SGD with momentum 0.9, batch 512, cosine, no weight decay, clip 1, 384 px.


def imagenet_transfer(model: str = "B/16") -> Fit:
    """Fine-tune on ImageNet as in Table 4: 20,000 steps, rate of {0.003, 0.01, 0.03, 0.06}; Polyak averaging (Table 2).

    vitkit fit imagenet/ --recipe imagenet_transfer --lr auto      paper, without averaging (--set average=0, Table 5):
    83.97 (B/16, ImageNet-21k), 85.15 (L/16)
    """
    return replace(
        _transfer(model, steps=20_000, warmup=500),
        lr=0.03,
        lr_candidates=(0.003, 0.01, 0.03, 0.06),
        lr_dev=0.01,
        average=0.9999,
    )


def cifar_transfer(model: str = "B/16") -> Fit:
    """Fine-tune on CIFAR-10 or CIFAR-100 as in Table 4: 10,000 steps.

    vitkit fit hf:cifar10 --recipe cifar_transfer --lr auto      paper: 98.95 (B/16, ImageNet-21k), CIFAR-100 91.67
    """
    return replace(_transfer(model, steps=10_000, warmup=500), lr_dev=0.02)


def pets_transfer(model: str = "B/16") -> Fit:
    """Fine-tune on Oxford-IIIT Pets as in Table 4: 500 steps.

    vitkit fit pets/ --recipe pets_transfer --lr auto      paper: 94.43 (B/16, ImageNet-21k), 94.67 (L/16); ours:
    91.57 ± 0.05 (Ti/16, ImageNet-1k, images of 160 px, three seeds; docs/pets.md), 90 s on an H200
    """
    return _transfer(model, steps=500, warmup=100)


def flowers_transfer(model: str = "B/16") -> Fit:
    """Fine-tune on Oxford Flowers-102 as in Table 4: 500 steps.

    vitkit fit flowers/ --recipe flowers_transfer --lr auto      paper: 99.38 (B/16, ImageNet-21k), 99.61 (L/16)
    """
    return _transfer(model, steps=500, warmup=100)


def vtab_transfer(model: str = "B/16") -> Fit:
    """Fine-tune on a task of VTAB as in Table 4: 2,500 steps at 0.01, on the 1,000 examples that DATA should hold.

    vitkit fit task/ --recipe vtab_transfer      paper: 72.72 on average (L/16, ImageNet-21k); ours: not run
    """
    return replace(_transfer(model, steps=2_500, warmup=500), lr=0.01, lr_candidates=())


def _transfer(model: str, *, steps: int, warmup: int) -> Fit:
    built = configure(model)
    side = 384 // built.stride * built.stride if isinstance(built, ViTConfig) else 384  # H/14: 378
    return Fit(
        model=model,
        image=(side, side),
        batch=512,
        steps=steps,
        lr=0.01,
        lr_candidates=RATES,
        optimizer=SGD(momentum=0.9),
        schedule=Schedule(kind="cosine", warmup=warmup),
        clip=1.0,
    )


# For ordinary sizes of data: as Table 4, but with a batch size and length for the number of images, and at the image
# size of the weights.


def small_transfer(model: str = "Ti/16") -> Fit:
    """Fine-tune on up to 2,000 images: 30 epochs, batch 32.

    vitkit fit photos/      ours: 92.6 ± 0.3 on 20 classes of CIFAR-100 from 50 images each (Ti/16, three seeds). Rate,
    length and crop were chosen on validation images of five datasets: docs/transfer.md
    """
    return _sized_transfer(model, batch=32, epochs=30, lr=0.003)


def medium_transfer(model: str = "Ti/16") -> Fit:
    """Fine-tune on 2,000 to 20,000 images: 12 epochs, batch 128.

    vitkit fit photos/      ours: 91.3 ± 0.2 on Pets, 3,680 images (Ti/16, three seeds), 17 s on an H200. Rate, length
    and crop were chosen on validation images of five datasets: docs/transfer.md
    """
    return _sized_transfer(model, batch=128, epochs=12, lr=0.01)


def large_transfer(model: str = "Ti/16") -> Fit:
    """Fine-tune on 20,000 images or more: 8 epochs, batch 512, mixup 0.1 as in BiT's rule.

    vitkit fit photos/      ours: 85.1 ± 0.3 on CIFAR-100 from 205 images of each class (Ti/16, three seeds). Rate,
    length and crop were chosen on validation images of five datasets: docs/transfer.md
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


def small_scratch(model: str = "Ti/16") -> Fit:
    """Train from scratch on up to 20,000 images: 100 epochs of AdamW with augmentation; expect little.

    vitkit fit photos/ --weights none      ours: 11.8 on Pets, 3,680 images, where pre-trained weights give 91.4
    """
    return _scratch(model, batch=128, epochs=100)


def medium_scratch(model: str = "Ti/16") -> Fit:
    """Train from scratch on 20,000 to 500,000 images: 100 epochs of AdamW with augmentation.

    vitkit fit photos/ --weights none
    """
    return _scratch(model, batch=512, epochs=100)


def large_scratch(model: str = "S/16") -> Fit:
    """Train from scratch on 500,000 images or more: big_vision's 90 epochs of ImageNet (Beyer et al. 2022).

    vitkit fit imagenet/ --weights none --model S/16      theirs: 76.5 (S/16 with --set options.pool=gap
    options.positions=sincos); ours: not run
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
        weights="none",
        image=(224, 224),
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
        batch=256,
        steps=None,
        epochs=100,
        lr=1e-3,
        clip=1.0,
        optimizer=AdamW(weight_decay=0.05),
        schedule=Schedule(kind="cosine", warmup=0.1),
        augment=Augmentation(crop=(0.25, 1.0)),
    )


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


# every public function above; `recipe` and what follows are not recipes
RECIPES: dict[str, Callable[..., Fit]] = {
    name: value
    for name, value in list(globals().items())
    if not name.startswith("_") and getattr(value, "__annotations__", {}).get("return") is Fit
}


def recipe(name: str, model: str | None = None) -> Fit:
    """Return the settings of the recipe by that name."""
    if name not in RECIPES:
        raise ConfigError(
            f"there is no recipe {name!r}{did_you_mean(name, RECIPES)}", recipes=textwrap.wrap(", ".join(RECIPES), 100)
        )
    chosen = RECIPES[name](model) if model else RECIPES[name]()
    return replace(chosen, recipe=name)


def pick_recipe(images: int, *, objective: str, from_scratch: bool) -> tuple[str, str]:
    """Return the name of the recipe for this many images, and the reason for it."""
    if objective == "masked-patch":
        return "small_masked_patch", f"{images:,} images without labels"
    if from_scratch:
        name = "small_scratch" if images < 20_000 else "medium_scratch" if images < 500_000 else "large_scratch"
        return name, f"{images:,} images, from scratch"
    name = "small_transfer" if images < 2_000 else "medium_transfer" if images < 20_000 else "large_transfer"
    return name, f"{images:,} images, from pre-trained weights"


def _row(table: dict[str, Row], model: str, data: str) -> Row:
    if model not in table:
        raise ConfigError(
            f"Table 3 has no row for {model} on {data}{did_you_mean(model, table)}", rows=", ".join(table)
        )
    return table[model]
