"""Recipes of fine-tuning: the rows of the paper's Tables 4 and 2, and BiT-HyperRule for its ResNet baselines.

Table 4: SGD with momentum 0.9, batch 512, cosine, no weight decay, clip 1, 384 px. Models of the paper start from its
authors' own ImageNet-21k weights, which its figures are of; other models from their public weights.

A docstring states the command; `expect` above it, the paper's figures with the weights that they are of.
"""

from dataclasses import replace

from vitkit.config.bit_hyperrule import IMAGENET, bit_rule
from vitkit.config.expectations import expect, ours, paper
from vitkit.config.image_size import fitting_side
from vitkit.config.schema import SGD, Fit, Schedule
from vitkit.data.image_sizes import DataSize
from vitkit.weights.public import PAPERS_OWN

RATES = (0.001, 0.003, 0.01, 0.03)  # Table 4's candidates for everything but ImageNet


@expect(
    paper("83.97", "ImageNet", "B/16", "ImageNet-21k", "Table 5"),
    paper("81.28", "ImageNet", "B/32", "ImageNet-21k", "Table 5"),
    paper("85.15", "ImageNet", "L/16", "ImageNet-21k", "Table 5"),
    paper("80.99", "ImageNet", "L/32", "ImageNet-21k", "Table 5"),
    paper("85.13", "ImageNet", "H/14", "ImageNet-21k", "Table 5"),
)
def imagenet_transfer_384(model: str = "B/16") -> Fit:
    """Fine-tune on ImageNet at 384 px as in Tables 4 and 5: 20,000 steps, rate of {0.003, 0.01, 0.03, 0.06}.

    vitkit fit imagenet/ --recipe imagenet_transfer_384 --lr auto
    """
    return _imagenet_transfer(model, 384)


@expect(
    paper("85.30", "ImageNet", "L/16", "ImageNet-21k", "Table 2"),
    paper("87.76", "ImageNet", "L/16", "JFT-300M", "Table 2", "not public"),
)
def imagenet_transfer_512(model: str = "L/16") -> Fit:
    """Fine-tune on ImageNet at 512 px with Polyak averaging 0.9999, as Table 2's L/16: 20,000 steps.

    vitkit fit imagenet/ --recipe imagenet_transfer_512 --lr auto
    """
    return replace(_imagenet_transfer(model, 512), average=0.9999)


@expect(paper("88.55", "ImageNet", "H/14", "JFT-300M", "Table 2", "not public; it has none for ImageNet-21k"))
def imagenet_transfer_518(model: str = "H/14") -> Fit:
    """Fine-tune on ImageNet at 518 px with Polyak averaging 0.9999, as Table 2's H/14: 20,000 steps.

    vitkit fit imagenet/ --recipe imagenet_transfer_518 --lr auto
    """
    return replace(_imagenet_transfer(model, 518), average=0.9999)


@expect(
    paper("98.95", "CIFAR-10", "B/16", "ImageNet-21k", "Table 5"),
    paper("91.67", "CIFAR-100", "B/16", "ImageNet-21k", "Table 5"),
    paper("99.15", "CIFAR-10", "L/16", "ImageNet-21k", "Table 2"),
    paper("93.25", "CIFAR-100", "L/16", "ImageNet-21k", "Table 2"),
)
def cifar_transfer(model: str = "B/16") -> Fit:
    """Fine-tune on CIFAR-10 or CIFAR-100 as in Table 4: 10,000 steps.

    vitkit fit hf:cifar10 --recipe cifar_transfer --lr auto
    """
    return replace(_transfer(model, steps=10_000, warmup=500), lr_dev=0.02)


@expect(
    paper("94.43", "Pets", "B/16", "ImageNet-21k", "Table 5"),
    paper("94.67", "Pets", "L/16", "ImageNet-21k", "Table 2"),
    ours("91.57 ± 0.05", "Pets at 160 px", "Ti/16", "ImageNet-1k", "AugReg's weights, three seeds, docs/pets.md"),
)
def pets_transfer(model: str = "B/16") -> Fit:
    """Fine-tune on Oxford-IIIT Pets as in Table 4: 500 steps; with Ti/16, 90 s on an H200.

    vitkit fit pets/ --recipe pets_transfer --lr auto
    """
    return _transfer(model, steps=500, warmup=100)


@expect(
    paper("99.38", "Flowers-102", "B/16", "ImageNet-21k", "Table 5"),
    paper("99.61", "Flowers-102", "L/16", "ImageNet-21k", "Table 2"),
)
def flowers_transfer(model: str = "B/16") -> Fit:
    """Fine-tune on Oxford Flowers-102 as in Table 4: 500 steps.

    vitkit fit flowers/ --recipe flowers_transfer --lr auto
    """
    return _transfer(model, steps=500, warmup=100)


@expect(
    paper("72.72", "VTAB's 19 tasks on average", "L/16", "ImageNet-21k", "Table 2"),
    paper("77.63", "VTAB's 19 tasks on average", "H/14", "JFT-300M", "Table 2", "not public"),
)
def vtab_transfer(model: str = "B/16") -> Fit:
    """Fine-tune on a task of VTAB as in Table 4: 2,500 steps at 0.01, on the 1,000 examples that DATA should hold.

    vitkit fit task/ --recipe vtab_transfer
    """
    return replace(_transfer(model, steps=2_500, warmup=500), lr=0.01, lr_candidates=())


@expect(
    paper(
        "89.33", "the average of Table 7", "R50x1", "JFT-300M", "Table 7", "not public; 88.79 where SGD pre-trained it"
    ),
)
def bit_hyperrule(model: str = "R50x1", data: DataSize = IMAGENET) -> Fit:
    """Fine-tune by BiT-HyperRule, as the paper its ResNets (B.1.1): steps, image size and mixup follow the data.

    vitkit fit photos/ --recipe bit_hyperrule --model R50x1      500 steps for up to 20,000 images, 10,000 for up to
    500,000, else 20,000; mixup 0.1 but for the first; 384 px cropped from 448, or 128 from 160 for images under 96 x 96
    px; rate 0.003, a tenth after 30, 60 and 90 %. Google's code has 480 px cropped from 512 (--image 480 --set
    augment.precrop=512), and for 500 steps schedule.drops=[0.4, 0.6, 0.8]
    """
    return bit_rule(model, data)


def _imagenet_transfer(model: str, side: int) -> Fit:
    return replace(
        _transfer(model, steps=20_000, warmup=500, side=side),
        lr=0.03,
        lr_candidates=(0.003, 0.01, 0.03, 0.06),
        lr_dev=0.01,
    )


def _transfer(model: str, *, steps: int, warmup: int, side: int = 384) -> Fit:
    side = fitting_side(model, side)
    return Fit(
        model=model,
        weights=PAPERS_OWN[model].source if model in PAPERS_OWN else "default",
        image=(side, side),
        batch=512,
        steps=steps,
        lr=0.01,
        lr_candidates=RATES,
        optimizer=SGD(momentum=0.9),
        schedule=Schedule(kind="cosine", warmup=warmup),
        clip=1.0,
    )
