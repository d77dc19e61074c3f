"""The settings of a training run as frozen dataclasses that validate their values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vitkit.config.objectives import OBJECTIVES
from vitkit.config.setting import PART, POSITIVE, SHARE, ZERO_OR_MORE, Bounds, check_ranges, setting
from vitkit.data.task import Task
from vitkit.errors import ConfigError
from vitkit.model.options import PositionTransfer

Objective = Literal["labels", "masked-patch", "next-pixel", "masked-pixel", "segment"]
TASKS: dict[str, Task] = {"classes": "classify", "masks": "segment", "none": "auto"}  # by an objective's target
Start = Literal["auto", "head", "full"]

Range = tuple[float, float]
OF_THE_WEIGHTS = "that of the weights"


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent with momentum; weight decay is added to the gradient."""

    momentum: float = setting(0.9, "share of the last update that the next one keeps", SHARE)
    weight_decay: float = setting(0.0, "strength of the pull of all weights to zero", ZERO_OR_MORE)

    def __post_init__(self) -> None:
        check_ranges(self, "optimizer")


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam (Kingma and Ba): weight decay is added to the gradient."""

    betas: Range = setting((0.9, 0.999), "decay of the averages of the gradient and of its square", SHARE)
    eps: float = setting(1e-8, "added to the denominator of an update", POSITIVE)
    weight_decay: float = setting(0.0, "strength of the pull of all weights to zero", ZERO_OR_MORE)

    def __post_init__(self) -> None:
        check_ranges(self, "optimizer")


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """AdamW (Loshchilov and Hutter): weight decay is decoupled from the gradient and scaled by the learning rate."""


Optimizer = SGD | Adam | AdamW


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate schedule: a linear warm-up, then a decay to zero, or none."""

    kind: Literal["cosine", "linear", "rsqrt", "constant", "step"] = setting(
        "cosine", "shape of the decay after the warm-up"
    )
    warmup: float = setting(0, "steps of linear warm-up, or a share of the run if under 1", ZERO_OR_MORE)
    timescale: int = setting(10_000, "for rsqrt: steps after which the rate has fallen to 1 / sqrt(2)", POSITIVE)
    drops: tuple[float, ...] = setting(
        (0.3, 0.6, 0.9), "for step: shares of the run after which the rate falls to a tenth", PART
    )
    cooldown: int = setting(
        0, "last steps, linearly to zero; for rsqrt, constant and step, which do not end at zero", ZERO_OR_MORE
    )

    def __post_init__(self) -> None:
        check_ranges(self, "schedule")


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """The augmentation of training images; the defaults are the paper's random crop and flip."""

    crop: Range | None = setting(
        (0.05, 1.0),
        "share of the area that a random crop keeps, drawn for every image; false: no random crop",
        Bounds(more_than=0, at_most=1),
        ascending=True,
    )
    precrop: int | None = setting(
        None,
        "BiT's random crop, in place of crop: resize to a square of this side, whatever the shape, and cut the model's "
        "input from a random place",
        POSITIVE,
        unset="none",
    )
    aspect: Range = setting(
        (3 / 4, 4 / 3),
        "width / height of the random crop; of segmentation, how much an image is stretched beside its usual shape",
        POSITIVE,
        ascending=True,
    )
    scale: Range = setting(
        (1.0, 1.0),
        "segmentation: sides of an image over those of the model's input, drawn for every image: below 1 it is padded, "
        "above 1 cropped at a random place",
        POSITIVE,
        ascending=True,
    )
    colour: float = setting(
        0.0, "segmentation: strength of the jitter of brightness, contrast, saturation and hue; 1: SSD's", ZERO_OR_MORE
    )
    flip: bool = setting(True, "flip half of the images from left to right; false where left and right differ")
    randaugment: tuple[int, float] | None = setting(
        None,
        "RandAugment: operations per image and their magnitude, such as [2, 9]",
        Bounds(at_least=1),
        Bounds(at_least=0, at_most=30),
        unset="none",
    )
    erase: float = setting(
        0.0, "random erasing: share of images with a box painted over", Bounds(at_least=0, at_most=1)
    )
    mixup: float = setting(
        0.0, "mixup: blend pairs of images and labels, in shares drawn from Beta(mixup, mixup); 0: off", ZERO_OR_MORE
    )
    cutmix: float = setting(
        0.0, "CutMix: paste a box of one image into another, sized by Beta(cutmix, cutmix); 0: off", ZERO_OR_MORE
    )

    def __post_init__(self) -> None:
        check_ranges(self, "augment")


@dataclass(frozen=True, kw_only=True)
class Masked:
    """The settings of masked patch prediction (B.1.2), and of masked-pixel prediction, which reads the rate only."""

    rate: float = setting(
        0.5, "share of patches to corrupt, of which the paper also tried 0.15; of pixels to hide, iGPT's is 0.15", PART
    )
    target: Literal["colour", "4x4", "pixels"] = setting(
        "colour",
        "what is predicted of a patch: its mean colour as one of 512 classes (3 bits of each channel), the same for "
        "each pixel of the patch downsized to 4x4, or all of its pixels with a squared loss (L2)",
    )

    def __post_init__(self) -> None:
        check_ranges(self, "masked")


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The settings of segmentation."""

    head: Literal["auto", "linear", "queries"] = setting(
        "auto",
        "what gives every pixel a class: linear, a projection of each patch, trains fast; queries, mask queries in the "
        "last blocks (EoMT), finds sharper masks; auto: that of the weights, else linear",
    )
    queries: int | None = setting(
        None,
        "mask queries of an image, each of which finds one mask at most",
        POSITIVE,
        unset="those of the weights, else 100",
    )
    query_blocks: int | None = setting(
        None, "last blocks of the model, which the mask queries join", POSITIVE, unset="those of the weights, else 4"
    )

    def __post_init__(self) -> None:
        check_ranges(self, "segment")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The settings of one training run; `--set KEY=VALUE` and `--config FILE.toml` reach every field by its name."""

    data: str = setting("", "the images: a folder, .zip, manifest, shards, arrays, hf:NAME or fashion")
    label: str | None = setting(None, "column of a manifest or hf: set that holds the classes", unset="by its name")
    task: Task = setting(
        "auto", "classify images or segment them into classes of pixels; auto: segment where the data have masks"
    )
    out: str = setting("", "the run folder to create; empty: a new one under runs/")
    objective: Objective = setting("labels", "what the model learns to predict")
    recipe: str = setting("", "the recipe that the other settings come from; empty: by the size of the data")
    seed: int = setting(0, "seed of all randomness but the held-out split", Bounds(at_least=0, less_than=2**63))
    split_seed: int = setting(0, "seed of the held-out split and of a subset: the same images for every seed")

    model: str = setting("", "name of the model, such as Ti/16; empty: that of the weights")
    options: Mapping[str, Any] = setting(
        dict, "options of the architecture, as of vitkit.create, for training from scratch"
    )
    weights: str = setting(
        "default", "where to start: default (the model's public weights), ti16, hf:OWNER/NAME, PATH, none"
    )
    image: tuple[int, int] | None = setting(
        None,
        "height and width of the model's input in pixels",
        POSITIVE,
        unset=f"{OF_THE_WEIGHTS}; without any, by the data, at most 224",
    )
    load_positions: PositionTransfer = setting(
        "interpolate",
        "learned positions of the weights at another image size: interpolate in 2-D (paper, 3.2), stretch in 1-D, or "
        "keep, which refuses another size; fresh re-initialises them at any size",
    )
    channels: int | None = setting(
        None, "channels of the images: 1 for grey, 3 for RGB", POSITIVE, unset=f"{OF_THE_WEIGHTS}, 3 without any"
    )
    resize: Literal["crop", "squash", "letterbox"] | None = setting(
        None,
        "how an image becomes the model's input: cut its centre, ignore its aspect ratio, or pad it",
        unset=OF_THE_WEIGHTS,
    )
    dropout: float | None = setting(None, "share of activations set to zero", SHARE, unset=OF_THE_WEIGHTS)
    stochastic_depth: float | None = setting(
        None, "chance of skipping the last block for an image; earlier blocks less", SHARE, unset=OF_THE_WEIGHTS
    )
    start: Start = setting(
        "full",
        "what to train: the head alone, on frozen features; or the full model; auto: the head on a CPU, unless "
        "settings of training are named, such as epochs",
    )
    freeze: int = setting(0, "first blocks to freeze, with all below them; -1: all but the head", Bounds(at_least=-1))

    batch: int = setting(512, "images per step, over all processes", POSITIVE)
    micro: int | None = setting(
        None,
        "images per micro-batch and process; gradients are accumulated over a batch",
        POSITIVE,
        unset="what fits into memory",
    )
    steps: int | None = setting(None, "length of the run in optimizer steps", POSITIVE, unset="by epochs")
    epochs: float | None = setting(None, "length of the run in passes over the images", POSITIVE, unset="by steps")
    lr: float = setting(0.01, "learning rate at its peak", POSITIVE)
    choose_lr: bool = setting(
        False, "take the best of lr_candidates on a validation split, as the paper does (--lr auto)"
    )
    lr_candidates: tuple[float, ...] = setting((), "the rates to choose from with --lr auto", POSITIVE)
    lr_dev: float = setting(0.1, "share of the training images to compare rates on, where there is no val", PART)
    optimizer: Optimizer = setting(SGD, "the optimizer and its settings")
    schedule: Schedule = setting(Schedule, "the learning rate schedule")
    clip: float = setting(1.0, "largest global norm of the gradient; 0: no clipping", ZERO_OR_MORE)
    layer_decay: float = setting(
        1.0,
        "layer-wise learning rate decay: the rate of a layer over that of the one above it; 1: the same for all",
        Bounds(more_than=0, at_most=1),
    )
    average: float = setting(
        0.0,
        "EMA (Polyak average) of the weights, which is then saved: its constant decay per step, such as 0.9999, its "
        "start corrected as in Adam; 0: none",
        SHARE,
    )
    label_smoothing: float = setting(0.0, "share of a label that is spread over all classes", SHARE)
    generative: float = setting(
        0.0,
        "weight of the next-pixel loss beside that of labels, for an iGPT; its paper fine-tunes with 1",
        ZERO_OR_MORE,
    )
    balance: float = setting(
        0.0,
        "weight of rare classes in the loss: (mean count / count) ** balance; 0: as they come, 1: all classes the same",
        ZERO_OR_MORE,
    )
    priors: Literal["balanced", "data"] = setting(
        "balanced",
        "with balance, the class shares that probabilities assume: balanced, as in training, finds more rare classes; "
        "data, the data's own shares, is calibrated",
    )
    augment: Augmentation = setting(Augmentation, "the augmentation of training images")
    masked: Masked = setting(Masked, "masked patch prediction")
    segment: Segment = setting(Segment, "segmentation")

    test: float = setting(0.2, "share held out for testing where the data have no test or val", PART)
    dev: float = setting(0.0, "share of the training images held out for validation, without val", SHARE)
    subset: float | None = setting(
        None,
        "share of the training images to use, of each class in proportion and one at least; 0.01 is part of 0.1; "
        "validation and test images stay",
        Bounds(more_than=0, at_most=1),
        unset="all",
    )
    subset_per_class: int | None = setting(
        None,
        "training images to use of each class, or all that it has; 5 are part of 20; with several labels an image, at "
        "least so many",
        POSITIVE,
        unset="all",
    )
    train_on_val: bool = setting(
        False, "train on the images of val, too, as for a final score: nothing is then chosen by them"
    )
    subset_images: int | None = setting(
        None,
        "train on so many images only, drawn at random by split_seed, whatever their class",
        POSITIVE,
        unset="all of them",
    )
    group: str | None = setting(
        None,
        "what stays on one side of every split: a column of a manifest, or a regular expression for paths",
        unset="a column called group, where there is one",
    )
    duplicates: Literal["auto", "together", "ignore"] = setting(
        "auto",
        "copies of an image stay on one side of every split; ignore: they are not looked for; auto: up to 5 million",
    )
    score_every: int | None = setting(None, "steps between validations", POSITIVE, unset="20 in the run")
    patience: int = setting(
        0, "early stopping: validations without improvement after which to stop; 0: never", ZERO_OR_MORE
    )
    save_every: int | None = setting(
        None,
        "steps between checkpoints",
        POSITIVE,
        unset="by time: 1 to 10 minutes, so that a run waits for them less than 3 % of its time",
    )
    max_failed: float = setting(0.01, "share of images that may fail to decode", ZERO_OR_MORE)

    device: str = setting("auto", "where to compute: auto, cuda, cuda:1, cpu or mps")
    precision: Literal["auto", "bf16", "fp32"] = setting("auto", "mixed precision in bf16, or all of it in fp32")
    fp8: bool = setting(False, "matrix products of the forward pass in fp8: for L and larger")
    parallel: Literal["auto", "ddp", "fsdp"] = setting("auto", "how several processes share the work")
    compile: Literal["auto", "yes", "no"] = setting("auto", "compile the training step with torch.compile")
    recompute: Literal["auto", "yes", "no"] = setting(
        "auto", "activation checkpointing: compute activations again in the backward pass, to save memory"
    )
    cuda_graph: Literal["auto", "yes", "no"] = setting("auto", "capture forward and backward and replay them")
    workers: int | None = setting(None, "data workers; 0: decode in the main process", ZERO_OR_MORE, unset="by cores")
    cache: Literal["auto", "gpu", "ram", "no"] = setting(
        "auto",
        "keep decoded training images in the memory of the GPU or of the host, for all epochs, where they fit into a "
        "quarter of what is free there, or half; no: decode each in every epoch; auto: the first of gpu, ram, no that "
        "fits",
    )
    shuffle: Literal["auto", "full", "computed", "shards"] = setting(
        "auto",
        "order of the images of an epoch: full, a permutation of all; computed, one that takes no memory; shards, tar "
        "files in random order, and the images of a few at a time; auto: full up to 1 million images, else computed",
    )
    shuffle_buffer: int = setting(
        100_000, "with shuffle = shards: images that are shuffled at a time, whole tar files, rounded up", POSITIVE
    )
    track: tuple[Literal["tensorboard", "wandb"], ...] = setting((), "also log to these")

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.steps is not None and self.epochs is not None:
            raise ConfigError(
                f"steps = {self.steps} and epochs = {self.epochs:g}: a run has one length", try_="one of them"
            )
        subsets = {name: getattr(self, name) for name in ("subset", "subset_per_class", "subset_images")}
        chosen = [f"{name} = {value:g}" for name, value in subsets.items() if value is not None]
        if len(chosen) > 1:
            raise ConfigError(f"{' and '.join(chosen)}: a run has one subset", try_="one of them")
        if self.subset_per_class is not None and self.objective != "labels":
            raise ConfigError(
                "subset_per_class needs a label for each image; this run reads none.",
                try_="--set subset=0.1, a share of all images",
            )

    @property
    def labelled(self) -> bool:
        """Return whether the run reads labels, and so holds images out and is scored."""
        return OBJECTIVES[self.objective].target != "none"

    @property
    def segments(self) -> bool:
        """Return whether the run is trained on masks, and gives every pixel a class."""
        return OBJECTIVES[self.objective].target == "masks"

    @property
    def data_task(self) -> Task:
        """Return how the data of the run were opened: with masks, by class, or as images alone, which masks are not."""
        return TASKS[OBJECTIVES[self.objective].target]

    @property
    def partition(self) -> dict[str, Any]:
        """Return the arguments of `vitkit.data.partition.partition`, which splits the images of the run."""
        names = ("objective", "test", "dev", "split_seed", "patience", "subset", "subset_per_class", "subset_images")
        return {name: getattr(self, name) for name in names}
