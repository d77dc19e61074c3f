"""timm's preprocessing: what its configurations say, and its defaults where they are silent."""

import logging
import math
from collections.abc import Mapping
from typing import Any, get_args

from vitkit.data.geometry import resize_target
from vitkit.data.preprocessing import Interpolation, Preprocessing, Resize
from vitkit.model.build import Model
from vitkit.model.config import ModelConfig, ViTConfig
from vitkit.weights import timm_dinov3
from vitkit.weights.formats import Checkpoint

CROP_MODES: dict[str, Resize] = {"center": "crop", "squash": "squash", "border": "letterbox"}

log = logging.getLogger("vitkit")


def preprocessing_of(
    checkpoint: Checkpoint, arguments: Mapping[str, Any], config: ModelConfig, *, imagenet: bool
) -> Preprocessing:
    """Return what timm's `resolve_data_config` and `create_transform` do, by the configuration or timm's defaults.

    imagenet   whether a file without a configuration is of a family that timm normalises by ImageNet's mean
    """
    if "preprocessing" in checkpoint.config:  # written by vitkit, whose rounding timm does not have
        return Preprocessing.from_record(checkpoint.config["preprocessing"])
    if not checkpoint.config:
        return _default_preprocessing(config, imagenet=imagenet)
    mode, filter = arguments.get("crop_mode") or "center", arguments.get("interpolation") or "bicubic"
    if mode not in CROP_MODES:
        log.warning("vitkit does not know timm's crop mode %r; images will be cropped at the centre", mode)
    if filter not in get_args(Interpolation):
        log.warning("vitkit does not have timm's interpolation %r; images will be resized bicubically", filter)
    missing = [name for name in _UNSAID if not arguments.get(name)]
    values = {**_UNSAID, **{name: arguments[name] for name in _UNSAID if name not in missing}}
    return Preprocessing(
        resize=CROP_MODES.get(mode, "crop"),
        crop=values["crop_pct"],
        interpolation="bilinear" if filter == "bilinear" else "bicubic",
        mean=tuple(values["mean"]),
        std=tuple(values["std"]),
        rounding="timm",
        origin=f"{', '.join(missing)}: timm's default, config.json does not say" if missing else "",
    )


# timm's PretrainedCfg, for what a config.json leaves out
_UNSAID: dict[str, Any] = {"crop_pct": 0.875, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def _default_preprocessing(config: ModelConfig, *, imagenet: bool) -> Preprocessing:
    """Return `_cfg` of timm's vision_transformer.py and resnetv2.py, where models of 384 px or more are not cropped."""
    vit = isinstance(config, ViTConfig)
    if imagenet and config.channels == len(_UNSAID["mean"]):
        return Preprocessing(
            crop=1.0 if min(config.image) >= 384 or timm_dinov3.is_dinov3(config) else 0.9,
            interpolation="bicubic",
            mean=_UNSAID["mean"],
            std=_UNSAID["std"],
            rounding="timm",
            origin="timm's default for DeiT, MAE and DINO, the file does not say",
        )
    half = (0.5,) * config.channels
    return Preprocessing(
        crop=1.0 if min(config.image) >= 384 else 0.9 if vit else 0.875,
        interpolation="bicubic" if vit else "bilinear",
        mean=half,
        std=half,
        rounding="timm",
        origin=f"timm's default for {'ViTs' if vit else 'ResNets'}, the file does not say",
    )


def crop_pct(model: Model) -> float:
    """Return the crop for which timm, which rounds down, resizes to the same size as vitkit."""
    preprocessing, side = model.metadata.preprocessing, min(model.config.image)
    target, share = min(resize_target(model.config.image, preprocessing)), preprocessing.crop
    if math.floor(side / share) == target:
        return share
    share = side / target
    return share if math.floor(side / share) == target else math.nextafter(share, 0)
