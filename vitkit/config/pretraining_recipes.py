"""Recipes of pre-training: the rows of the paper's Table 3, masked patch prediction (B.1.2), and AugReg's.

A docstring states the command; `expect` above it, the paper's figures with the weights that they are of.
"""

from dataclasses import replace
from typing import TypeVar

from vitkit.config.expectations import Figure, expect, paper
from vitkit.config.schema import Adam, AdamW, Augmentation, Fit, Masked, Schedule
from vitkit.errors import ConfigError, did_you_mean
from vitkit.model.config import ViTConfig
from vitkit.model.variants import configure

Row = TypeVar("Row")

FINE_TUNED = "ImageNet, fine-tuned at 384 px"
EITHER = "30 or 90 epochs: the paper does not say which"

# Table 3. Batch 4096, 10k steps of warm-up, Adam, 224 px; decoupled weight decay.

JFT_7 = {  # 7 epochs; model: learning rate
    "B/32": 8e-4,
    "B/16": 8e-4,
    "L/32": 6e-4,
    "L/16": 4e-4,
    "R50x1": 1e-3,
    "R50x2": 1e-3,
    "R101x1": 8e-4,
    "R152x1": 6e-4,
    "R152x2": 6e-4,
    "R50+B/32": 8e-4,
    "R50+B/16": 8e-4,
    "R50+L/32": 2e-4,
    "R50+L/16": 4e-4,
}
JFT_14 = {"L/16": 4e-4, "H/14": 3e-4, "R50+L/16": 4e-4}
IMAGENET21K_30 = {"L/32": 1e-3, "L/16": 1e-3}
IMAGENET21K_90 = {"B/32": 1e-3, "B/16": 1e-3, **IMAGENET21K_30}


@expect(
    paper("84.15", FINE_TUNED, "B/16", "JFT-300M", "Table 5"),
    paper("80.73", FINE_TUNED, "B/32", "JFT-300M", "Table 5"),
    paper("84.37", FINE_TUNED, "L/32", "JFT-300M", "Table 5"),
    data="JFT-300M",
)
def jft_pretrain_7ep(model: str = "B/16") -> Fit:
    """Pre-train as in Table 3, JFT-300M rows of 7 epochs: linear decay, weight decay 0.1; ResNets and hybrids too.

    vitkit pretrain shards/ --recipe jft_pretrain_7ep --model L/16
    """
    return _with_hidden_layer(_pretrain(model, _row(JFT_7, model, "JFT-300M, 7 epochs"), epochs=7, decay=0.1))


@expect(
    paper("87.12", FINE_TUNED, "L/16", "JFT-300M", "Table 5"),
    paper("88.04", FINE_TUNED, "H/14", "JFT-300M", "Table 5"),
    data="JFT-300M",
)
def jft_pretrain_14ep(model: str = "L/16") -> Fit:
    """Pre-train as in Table 3, JFT-300M rows of 14 epochs: L/16, H/14 and R50+L/16; linear decay, weight decay 0.1.

    vitkit pretrain shards/ --recipe jft_pretrain_14ep --model H/14
    """
    return _with_hidden_layer(_pretrain(model, _row(JFT_14, model, "JFT-300M, 14 epochs"), epochs=14, decay=0.1))


@expect(
    paper("85.15", FINE_TUNED, "L/16", "ImageNet-21k", "Table 5", EITHER),
    paper("80.99", FINE_TUNED, "L/32", "ImageNet-21k", "Table 5", EITHER),
    data="ImageNet-21k",
)
def imagenet21k_pretrain_30ep(model: str = "L/16") -> Fit:
    """Pre-train as in Table 3, ImageNet-21k rows of L for 30 epochs: linear decay, weight decay 0.03, dropout 0.1.

    vitkit pretrain shards/ --recipe imagenet21k_pretrain_30ep --model L/16
    """
    rate = _row(IMAGENET21K_30, model, "ImageNet-21k, 30 epochs")
    return _with_hidden_layer(_with_dropout(_pretrain(model, rate, epochs=30, decay=0.03)))


@expect(
    paper("83.97", FINE_TUNED, "B/16", "ImageNet-21k", "Table 5"),
    paper("81.28", FINE_TUNED, "B/32", "ImageNet-21k", "Table 5"),
    paper("85.15", FINE_TUNED, "L/16", "ImageNet-21k", "Table 5", EITHER),
    paper("80.99", FINE_TUNED, "L/32", "ImageNet-21k", "Table 5", EITHER),
    data="ImageNet-21k",
)
def imagenet21k_pretrain_90ep(model: str = "B/16") -> Fit:
    """Pre-train as in Table 3, ImageNet-21k rows of 90 epochs: linear decay, weight decay 0.03, dropout 0.1.

    vitkit pretrain shards/ --recipe imagenet21k_pretrain_90ep --model B/16
    """
    rate = _row(IMAGENET21K_90, model, "ImageNet-21k, 90 epochs")
    return _with_hidden_layer(_with_dropout(_pretrain(model, rate, epochs=90, decay=0.03)))


@expect(
    paper("77.91", FINE_TUNED, "B/16", "ImageNet", "Table 5"),
    paper("76.53", FINE_TUNED, "L/16", "ImageNet", "Table 5"),
    data="ImageNet",
)
def imagenet_pretrain(model: str = "B/16") -> Fit:
    """Train ImageNet from scratch as in Table 3, last row: 300 epochs, cosine, weight decay 0.3, dropout 0.1, clip 1.

    vitkit pretrain imagenet/ --recipe imagenet_pretrain --model B/16
    """
    config = _pretrain(model, 3e-3, epochs=300, decay=0.3)
    return _with_hidden_layer(
        _with_dropout(replace(config, schedule=replace(config.schedule, kind="cosine"), clip=1.0))
    )


@expect(data="ImageNet-21k")
def augreg_pretrain(model: str = "S/16") -> Fit:
    """Pre-train with AugReg's middle setting: RandAugment (2, 15), mixup 0.2, dropout and stochastic depth 0.1.

    vitkit pretrain shards/ --recipe augreg_pretrain --model S/16      300 epochs of ImageNet-21k, cosine, weight decay
    0.1; their results: Figure 4 of Steiner et al. (2021)
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


@expect(
    paper("79.9", FINE_TUNED, "B/16", "JFT-300M", "B.1.2", "without labels; 2 points over training from scratch"),
    data="JFT-300M",
)
def masked_patch_pretrain(model: str = "B/16") -> Fit:
    """Predict the mean colour of masked patches (B.1.2), half of all: 1M steps, batch 4096, Adam 2e-4, cosine.

    vitkit pretrain shards/ --recipe masked_patch_pretrain      returns flatten after 100k steps, says the paper
    """
    return replace(
        _pretrain(model, 2e-4, steps=1_000_000, decay=0.1),
        objective="masked-patch",
        masked=Masked(),
        schedule=Schedule(kind="cosine", warmup=10_000),
    )


@expect(
    Figure(
        value="96.3",
        on="CIFAR-10, linear probe",
        model="iGPT-L/32",
        pretrained_on="ImageNet",
        source="Chen et al. 2020, their weights",
    ),
    data="ImageNet",
)
def igpt_pretrain(model: str = "iGPT-S/32") -> Fit:
    """Pre-train an iGPT by next-pixel prediction: 1M steps, batch 128, Adam (0.9, 0.95), cosine, random crops.

    vitkit pretrain imagenet/ --recipe igpt_pretrain --model iGPT-S/32      the paper tries 0.01, 0.003, 0.001 … and
    keeps the best rate; --objective masked-pixel --set masked.rate=0.15 is its BERT
    """
    return Fit(
        model=model,
        weights="none",
        objective="next-pixel",
        batch=128,
        steps=1_000_000,
        lr=3e-3,
        clip=0.0,
        optimizer=Adam(betas=(0.9, 0.95)),
        schedule=Schedule(kind="cosine", warmup=0.01),  # an epoch of ImageNet
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
    return replace(config, dropout=0.1) if hasattr(configure(config.model), "dropout") else config


def _row(table: dict[str, Row], model: str, data: str) -> Row:
    if model not in table:
        raise ConfigError(
            f"Table 3 has no row for {model} on {data}{did_you_mean(model, table)}", rows=", ".join(table)
        )
    return table[model]
