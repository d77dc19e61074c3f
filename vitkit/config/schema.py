"""The settings of a training run as frozen dataclasses that validate their values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vitkit.errors import ConfigError

Objective = Literal["labels", "masked-patch"]
Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class SGD:
    momentum: float = 0.9
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _share("optimizer.momentum", self.momentum)
        _positive("optimizer.weight_decay", self.weight_decay, zero=True)


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam (Kingma and Ba): weight decay is added to the gradient."""

    betas: Range = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        for beta in self.betas:
            _share("optimizer.betas", beta)
        _positive("optimizer.eps", self.eps)
        _positive("optimizer.weight_decay", self.weight_decay, zero=True)


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """AdamW (Loshchilov and Hutter): weight decay is decoupled from the gradient and scaled by the learning rate."""


Optimizer = SGD | Adam | AdamW


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate schedule: a linear warm-up, then a decay to zero, or none."""

    kind: Literal["cosine", "linear", "rsqrt", "constant"] = "cosine"
    warmup: float = 0  # steps, or a share of the run if under 1
    timescale: int = 10_000  # rsqrt: steps after which the rate has fallen to 1 / sqrt(2)
    cooldown: int = 0  # the last steps, linearly to zero; for rsqrt and constant, which do not end at zero

    def __post_init__(self) -> None:
        for name in ("warmup", "cooldown"):
            _positive(f"schedule.{name}", getattr(self, name), zero=True)
        _positive("schedule.timescale", self.timescale)


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """The augmentation of training images; the defaults are the paper's random crop and flip."""

    crop: Range | None = (0.05, 1.0)  # share of the area that a random crop keeps; false: all of it
    aspect: Range = (3 / 4, 4 / 3)  # its width / height
    flip: bool = True
    randaugment: tuple[int, float] | None = None  # operations and magnitude
    erase: float = 0.0  # share of images with a box painted over (random erasing)
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        for name, pair, most in (("crop", self.crop, 1.0), ("aspect", self.aspect, float("inf"))):
            if pair is not None and not 0 < pair[0] <= pair[1] <= most:
                raise ConfigError(
                    f"augment.{name} = {list(pair)} is not a range",
                    try_="[least, greatest], above 0" + (" and up to 1" if most == 1 else ""),
                )
        for name in ("mixup", "cutmix"):
            _positive(f"augment.{name}", getattr(self, name), zero=True)
        if not 0 <= self.erase <= 1:
            raise ConfigError(f"augment.erase = {self.erase} is the share of images: 0 to 1")
        if self.randaugment is not None and not (self.randaugment[0] >= 1 and 0 <= self.randaugment[1] <= 30):
            raise ConfigError(
                f"augment.randaugment = {list(self.randaugment)} is out of range",
                try_="[operations, magnitude] such as [2, 9]; magnitudes go from 0 to 30",
            )


@dataclass(frozen=True, kw_only=True)
class Masked:
    """The settings of masked patch prediction (B.1.2)."""

    rate: float = 0.5  # share of patches corrupted
    target: Literal["colour", "pixels"] = "colour"  # 3-bit mean colour as a class; or all pixels, L2

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ConfigError(f"masked.rate = {self.rate} is the share of patches to corrupt: above 0, under 1")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The settings of one training run; `--set KEY=VALUE` and `--config FILE.toml` reach every field by its name."""

    data: str = ""
    label: str | None = None  # the column of a manifest or hf: set that holds the classes
    out: str = ""
    objective: Objective = "labels"
    recipe: str = ""  # the recipe that the settings come from
    seed: int = 0
    split_seed: int = 0  # of the held-out split: the same images for every seed

    model: str = ""  # its name; default: that of the weights
    options: Mapping[str, Any] = field(default_factory=dict)  # of vitkit.create, for training from scratch
    weights: str = "default"  # default: the variant's public checkpoint; hf:…, a path, or none
    image: tuple[int, int] | None = None  # height, width; default: that of the weights, 224 without any
    channels: int | None = None  # default: that of the weights, 3 without any
    resize: Literal["crop", "squash", "letterbox"] | None = None  # default: that of the weights
    dropout: float | None = None  # default: that of the weights
    stochastic_depth: float | None = None
    freeze: int = 0  # the first blocks to freeze, with all below them; -1: all but the head

    batch: int = 512  # images per step, over all processes
    micro: int | None = None  # images per micro-batch and process; gradients are accumulated over a batch
    steps: int | None = None
    epochs: float | None = None  # instead of steps
    lr: float = 0.01
    choose_lr: bool = False  # take the best of lr_candidates on a validation split, as the paper does
    lr_candidates: tuple[float, ...] = ()
    lr_dev: float = 0.1  # share of the training images to validate them on, without val
    optimizer: Optimizer = field(default_factory=SGD)
    schedule: Schedule = field(default_factory=Schedule)
    clip: float = 1.0  # largest global norm of the gradient; 0: no clipping
    layer_decay: float = 1.0  # layer-wise learning rate decay: the rate of a layer over that of the one above it
    average: float = 0.0  # EMA (Polyak average) of the weights: decay per step, such as 0.9999; 0: none
    label_smoothing: float = 0.0
    balance: float = 0.0  # rare classes weigh (mean count / count) ** balance; 1: all the same
    augment: Augmentation = field(default_factory=Augmentation)
    masked: Masked = field(default_factory=Masked)

    test: float = 0.2  # share held out for testing where the data have no test or val
    dev: float = 0.0  # share of the training images held out for validation, without val
    group: str | None = None  # images that stay on one side of every split: a column, or a regular expression for paths
    duplicates: Literal["auto", "together", "ignore"] = "auto"  # copies of an image; auto: together up to 5 million
    score_every: int | None = None  # steps between validations; default: 20 in the run
    patience: int = 0  # early stopping: validations without improvement after which to stop; 0: never
    save_every: int | None = None  # steps between checkpoints; default: 10 in the run
    max_failed: float = 0.01  # share of images that may fail to decode

    device: str = "auto"  # cuda, cuda:1, cpu, mps
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    fp8: bool = False  # matrix products of the forward pass in fp8: for L and larger
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"
    compile: Literal["auto", "yes", "no"] = "auto"
    recompute: Literal["auto", "yes", "no"] = "auto"  # activation checkpointing
    cuda_graph: Literal["auto", "yes", "no"] = "auto"  # capture forward and backward and replay them
    workers: int | None = None  # data workers; default: by cores
    track: tuple[Literal["tensorboard", "wandb"], ...] = ()

    def __post_init__(self) -> None:
        for name in ("batch", "micro", "channels", "score_every", "save_every"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        for name in ("clip", "balance", "patience", "max_failed", "workers"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name), zero=True)
        for name in ("dropout", "stochastic_depth", "average", "label_smoothing", "dev"):
            if getattr(self, name) is not None:
                _share(name, getattr(self, name))
        _positive("lr", self.lr)
        for rate in self.lr_candidates:
            _positive("lr_candidates", rate)
        if not 0 <= self.seed < 2**63:  # what torch takes
            raise ConfigError(f"seed = {self.seed}: 0 or more is needed, of at most 18 digits")
        for name, purpose in (("test", "testing"), ("lr_dev", "choosing a learning rate")):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} = {getattr(self, name)} is the share held out for {purpose}: above 0, under 1"
                )
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(f"layer_decay = {self.layer_decay} must be above 0 and at most 1")
        if self.freeze < -1:
            raise ConfigError(f"freeze = {self.freeze}: blocks to freeze, or -1 for all but the head")
        self._check_length()

    @property
    def partition(self) -> dict[str, Any]:
        """Return the arguments of `vitkit.data.partition.partition`, which splits the images of the run."""
        return {name: getattr(self, name) for name in ("objective", "test", "dev", "split_seed", "patience")}

    def _check_length(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise ConfigError(
                f"steps = {self.steps} and epochs = {self.epochs:g}: a run has one length", try_="one of them"
            )
        for name in ("steps", "epochs"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))


def _positive(name: str, value: float, *, zero: bool = False) -> None:
    if not (value >= 0 if zero else value > 0) or value == float("inf"):
        raise ConfigError(f"{name} = {value}: {'0 or more' if zero else 'more than 0'} is needed")


def _share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ConfigError(f"{name} = {value}: 0 or more and under 1 is needed")
