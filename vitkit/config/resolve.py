"""Resolve the settings of a run: what the user set, over the named recipe or the one that fits the data."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from vitkit.config import toml
from vitkit.config.image_size import choose_mask_size, choose_size
from vitkit.config.objectives import OBJECTIVES
from vitkit.config.recipes import BY_DATA, RENAMED, describe_renamed, pick_recipe, recipe
from vitkit.config.schema import Fit
from vitkit.data.image_sizes import DataSize, measure_size
from vitkit.data.partition import partition
from vitkit.data.sources import fashion
from vitkit.data.sources.dataset import Data
from vitkit.data.sources.open import open_data
from vitkit.data.sources.splits import training_split, validation_split
from vitkit.data.subset import subset_size
from vitkit.data.training_images import join_validation
from vitkit.errors import ConfigError
from vitkit.model.config import ViTConfig
from vitkit.model.variants import configure, split_head
from vitkit.storage.urls import is_url
from vitkit.weights.bundled import local_path
from vitkit.weights.label_free import label_free_family
from vitkit.weights.public import DEFAULTS

DEFAULT_MODEL = "Ti/16"
# what a head fitted on frozen features depends on; who sets anything else asks for training
SETTINGS_OF_A_HEAD = frozenset(
    "data label group duplicates out objective recipe seed split_seed model weights image channels resize start balance"
    " priors test dev train_on_val subset subset_per_class subset_images max_failed device precision workers"
    " load_positions".split()
)
THRESHOLD_DEV = 0.1  # share of multi-label training images to choose thresholds by, where there are no others
THRESHOLD_IMAGES = 200  # multi-label training images, from which that share is held out


def resolve(
    settings: Mapping[str, Any],
    explicit: Mapping[str, Any] | None = None,
    *,
    pretraining: bool = False,
    open_data: Callable[..., Data] = open_data,
) -> tuple[Fit, Data, str]:
    """Return every setting of the run, its data, and the reason for its recipe.

    Settings that the user made `explicit` (default: all of them) must have an effect; a file may come from another run.
    `pretraining` gives a ViT that learns from labels the paper's pre-training head.
    """
    if not settings.get("data"):
        raise ConfigError("no data named", try_="vitkit fit FOLDER, or data = … in the --config file")
    task = settings.get("task", "auto")
    if (objective := settings.get("objective", "segment")) != "segment":
        if task == "segment":
            raise ConfigError(
                f"objective = {objective} and task = segment contradict each other", try_="leave one of them out"
            )
        # without labels, masks are recognised so that they do not count as images
        task = "classify" if objective == "labels" else "auto"
    data = open_data(settings["data"], label=settings.get("label"), group=settings.get("group"), task=task)
    explicit = settings if explicit is None else explicit
    if data.task == "segment" and not pretraining:
        settings = {"objective": "segment", **settings}
    elif settings.get("objective") == "segment":
        raise ConfigError(
            f"objective = segment needs masks, and {data.name} has none",
            try_="vitkit fit DATA --task segment, which says what masks it looks for",
        )
    if settings.get("train_on_val"):  # which no recipe sets; before all decisions by the number of images
        if "train_on_val" in explicit and validation_split(data) is None:
            raise _unused("train_on_val", "data with a val split")
        data = join_validation(data)
    split = data.splits[training_split(data)]
    count = _training_images(settings, data)

    @cache
    def size() -> DataSize | None:
        """Read some images: only where a decision depends on it."""
        measured = measure_size(split)
        return None if measured is None else replace(measured, images=count)

    weights = settings.get("weights", "default")
    name, reason = settings.get("recipe", ""), "as asked"
    if not name:
        objective = settings.get("objective", "labels")
        name, reason = pick_recipe(
            count, objective=objective, from_scratch=weights == "none", label_free=label_free_family(weights)
        )
    reasons = [reason, *([describe_renamed(name)] if name in RENAMED else [])]
    if name in BY_DATA and (measured := size()):
        reasons.append(str(measured))
    base = recipe(name, settings.get("model") or None, size() if name in BY_DATA else None)
    tables = toml.to_tables(base)
    if weights not in ("default", "none"):  # the weights determine the model and how it is built
        for key in ("options", "channels"):
            tables.pop(key, None)
        if not settings.get("model"):
            tables["model"] = ""
    config = replace(toml.from_tables(toml.merge(tables, settings)), recipe=base.recipe)
    if pretraining:
        config = _with_pretraining_head(config)
    if config.weights == "none":
        config = replace(config, options={**OBJECTIVES[config.objective].options, **config.options})
    # the config.toml of a run names every setting, `start` too; other files name what is asked for
    asked = explicit if "start" in settings else settings
    if config.start == "auto" and (config.choose_lr or asked.keys() - SETTINGS_OF_A_HEAD):
        config = replace(config, start="full")
    _refuse_unused(explicit, config, data)
    if (
        not is_url(config.data) and Path(config.data).exists() and config.data != fashion.NAME
    ):  # a run can be resumed from any directory
        config = replace(config, data=str(Path(config.data).absolute()))
    if "dev" not in settings and _needs_thresholds(config, data):
        config = replace(config, dev=THRESHOLD_DEV)
    backbone, head = split_head(config.model)
    if head and config.segments and config.weights in ("default", "none"):
        raise ConfigError(
            f"{config.model} is a model with its head, which a run chooses by segment.head",
            try_=f"--model {backbone} --set segment.head={head}",
        )
    masked = config.segments and config.image is None and config.model
    if masked and (mask_size := choose_mask_size(config.model, config.options, size())):
        config = replace(config, image=mask_size.image)
        reasons.append(mask_size.reason)
    if config.weights == "none" and config.image is None:
        model, side, why = choose_size(
            config.model or DEFAULT_MODEL, config.options, size(), named=bool(settings.get("model"))
        )
        config = replace(config, model=model, image=(side, side))
        reasons.append(why)
    return resolve_weights(config), data, f"{base.recipe}: {'; '.join(reasons)}"


def _training_images(settings: Mapping[str, Any], data: Data) -> int:
    """Return the number of images that decides on a recipe: those of the training split, or of the subset asked for.

    A value out of its range is an error later, when all settings are known.
    """
    share, number, images = (settings.get(name) for name in ("subset", "subset_per_class", "subset_images"))
    return subset_size(
        len(data.splits[training_split(data)]),
        len(data.classes),
        share if isinstance(share, int | float) and 0 < share <= 1 else None,
        number if isinstance(number, int) and number > 0 else None,
        images if isinstance(images, int) and images > 0 else None,
    )


def _with_pretraining_head(config: Fit) -> Fit:
    """Return the settings with a tanh layer as wide as the model before the logits (3.1), for a ViT and labels.

    Options that name `representation`, as false too, stay as they are.
    """
    if not config.labelled or config.weights != "none" or "representation" in config.options:
        return config
    built = configure(config.model or DEFAULT_MODEL)
    if not isinstance(built, ViTConfig):  # the head of the paper's ResNets is linear
        return config
    width = config.options.get("width", built.width)
    return replace(config, options={**config.options, "representation": width})


def _needs_thresholds(config: Fit, data: Data) -> bool:
    """Return whether images should be held out to choose the thresholds of a multi-label model, as there are no others.

    Images that are scored cannot serve: thresholds that are chosen on them would raise the score.
    """
    if not data.multilabel or not config.labelled:
        return False
    # a subset does not count: the same images are held out for all of a learning curve
    splits = partition(data, **replace(config, subset=None, subset_per_class=None, subset_images=None).partition)
    return splits.to_choose_by is None and len(splits.train) >= THRESHOLD_IMAGES


def resolve_weights(config: Fit) -> Fit:
    """Replace the weights "default" by the name of the variant's public checkpoint, and a path by an absolute one."""
    if config.weights == "none":
        return replace(config, model=config.model or DEFAULT_MODEL)
    if config.weights != "default":
        path = local_path(config.weights)  # a run can be resumed from any directory
        return replace(config, weights=str(path.absolute())) if path and path.exists() else config
    model = config.model or DEFAULT_MODEL
    public = DEFAULTS.get(model)
    if public is None:
        configure(model)  # raises its own error for an unknown name
        raise ConfigError(
            f"no public weights are known for {model}.",
            try_="--weights none to train from scratch, --weights PATH for your own",
            known_for=", ".join(DEFAULTS),
        )
    return replace(config, model=model, weights=public.source)


def _refuse_unused(explicit: Mapping[str, Any], config: Fit, data: Data) -> None:
    """Raise an error for a setting that this run would not use."""
    objective = OBJECTIVES[config.objective]
    for name in explicit.get("masked", {}):
        if name not in objective.masked:
            reading = [known for known, one in OBJECTIVES.items() if name in one.masked]
            raise _unused(f"masked.{name}" if objective.masked else "masked", f"objective = {' or '.join(reading)}")
    for name in explicit.get("segment", {}):
        if not config.segments:
            raise _unused("segment", "objective = segment, for data with masks")
        if name != "head" and config.segment.head != "queries":
            raise _unused(f"segment.{name}", "segment.head = queries")
    if "timescale" in explicit.get("schedule", {}) and config.schedule.kind != "rsqrt":
        raise _unused("schedule.timescale", "schedule.kind = rsqrt")
    if "drops" in explicit.get("schedule", {}) and config.schedule.kind != "step":
        raise _unused("schedule.drops", "schedule.kind = step")
    if explicit.get("augment", {}).get("crop") and config.augment.precrop is not None:
        raise _unused("augment.crop", "augment.precrop = false")
    _refuse_unused_by_task(explicit, config)
    if config.start == "head":
        for name in sorted(explicit.keys() - SETTINGS_OF_A_HEAD):
            raise _unused(name, "start = full")
    if explicit.get("generative") and not config.labelled:
        raise _unused("generative", "objective = labels")
    if "load_positions" in explicit and config.weights == "none":
        raise _unused("load_positions", "a model with weights")
    if "priors" in explicit and not config.balance:
        raise _unused("priors", "balance above 0")
    if "shuffle_buffer" in explicit and config.shuffle != "shards":
        raise _unused("shuffle_buffer", "shuffle = shards")
    for name in ("lr_candidates", "lr_dev"):
        if name in explicit and not config.choose_lr:
            raise _unused(name, "--lr auto")
    for name in ("group", "duplicates", "train_on_val"):
        if name in explicit and not config.labelled:
            raise _unused(name, "objective = labels or segment, which hold images out")
    if "test" in explicit and config.labelled and partition(data, **config.partition).held_out is None:
        raise _unused("test", "data without a test or val split, and these have one")


def _refuse_unused_by_task(explicit: Mapping[str, Any], config: Fit) -> None:
    """Raise an error for a setting of the other task: of labels in segmentation, or of masks elsewhere."""
    augment = explicit.get("augment", {})
    if not config.segments:
        for name in ("scale", "colour"):
            if name in augment:
                raise _unused(f"augment.{name}", "objective = segment, for data with masks")
        return
    for name in ("balance", "label_smoothing"):
        if explicit.get(name):
            raise _unused(name, "objective = labels")
    for name in ("crop", "precrop", "randaugment", "mixup", "cutmix"):
        if augment.get(name):
            raise ConfigError(
                f"augment.{name} would not move the masks with the images",
                try_="augment.scale, aspect, flip, colour and erase, which segmentation has in its place",
            )
    if config.resize not in (None, "squash"):
        raise ConfigError(
            f"resize = {config.resize}: segmentation resizes all of an image to the model's input, so that every pixel "
            "of its mask is found",
            try_="resize = squash; --image HEIGHT WIDTH for the shape of your images",
        )


def _unused(name: str, needed: str) -> ConfigError:
    return ConfigError(f"{name} would change nothing here: it is for {needed}", try_=f"leave {name} out")
