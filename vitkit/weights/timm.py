"""timm's format for ViTs, the hybrids that timm has, and BiT ResNets: config.json and model.safetensors in a folder.

A file alone means timm's defaults: exact GELU, LayerNorm epsilon 1e-6, and the preprocessing that timm has for most
such models; the norms in it tell how it pools.
"""

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, TypedDict

import torch
from torch import Tensor

from vitkit.errors import WeightsError
from vitkit.model.base import Metadata, Provenance
from vitkit.model.config import ModelConfig, ViTConfig
from vitkit.model.resize_positions import Interpolation as PositionInterpolation
from vitkit.stored_json import conform
from vitkit.weights import formats, mapping, timm_dinov3
from vitkit.weights.timm_infer import image_of, infer_resnet, infer_vit
from vitkit.weights.timm_names import resnet_rules, vit_rules
from vitkit.weights.timm_preprocessing import preprocessing_of

# Architectures whose MLPs use timm's default, an exact GELU.
_PLAIN = re.compile(r"(?!.*siglip)(vit_(tiny|small|base|large|huge|giant|gigantic)_(patch\d|r)|resnetv2_|deit)")

log = logging.getLogger("vitkit")


class _Arguments(TypedDict, total=False):
    """The part of config.json that is read, with its tables model_args and pretrained_cfg in one."""

    act_layer: str | None
    class_token: bool
    reg_tokens: int
    num_reg_tokens: int
    global_pool: str
    pos_embed: str
    num_heads: int | None
    init_values: float | None
    rope_temperature: float
    tag: str | None
    img_size: int | tuple[int, int] | None
    input_size: tuple[int, int, int] | None
    label_names: list[str] | None
    crop_mode: str | None
    crop_pct: float | None
    interpolation: str | None
    mean: list[float] | None
    std: list[float] | None
    position_interpolation: PositionInterpolation  # vitkit's own, as those below
    projection: int | None
    vitkit: Provenance


class _Tables(TypedDict, total=False):
    pretrained_cfg: dict[str, Any] | None
    model_args: dict[str, Any] | None


def recognises(names: Collection[str]) -> bool:
    return "patch_embed.proj.weight" in names or {"stem.conv.weight", "stages.0.blocks.0.conv1.weight"} <= set(names)


def load(checkpoint: formats.Checkpoint) -> formats.LoadedWeights:
    origin = f"config.json of {checkpoint.origin}"
    tables: _Tables = conform(checkpoint.config, _Tables, origin, error=WeightsError)
    arguments: dict[str, Any] = conform(
        {**(tables.get("pretrained_cfg") or {}), **checkpoint.config, **(tables.get("model_args") or {})},
        _Arguments,
        origin,
        error=WeightsError,
    )
    architecture = str(arguments.get("architecture", ""))
    if architecture and "act_layer" not in arguments and not _PLAIN.match(architecture):
        log.warning("%s: the config does not name the GELU of %s; exact is assumed", checkpoint.origin, architecture)
    config: ModelConfig
    if checkpoint.has("patch_embed.proj.weight"):
        checkpoint = replace(checkpoint, image=image_of(arguments) or checkpoint.image)
        for name in _configured_tokens(arguments):
            checkpoint.shape(name, 3)  # without it, the rest would be a model, too: another one
        if timm_dinov3.recognises(checkpoint.tensors):
            config = timm_dinov3.infer(checkpoint, arguments)
        else:
            checkpoint = replace(checkpoint, tensors=_fix(checkpoint.tensors, arguments))
            config = infer_vit(checkpoint, arguments)
        rules = list(vit_rules(config))
    else:
        config = infer_resnet(checkpoint, arguments)
        rules = list(resnet_rules(config))
    labels = arguments.get("label_names")
    metadata = Metadata(
        labels=tuple(labels) if labels and len(labels) == config.classes else None,
        preprocessing=preprocessing_of(
            checkpoint, arguments, config, imagenet=_is_later(config) or _is_mae(checkpoint)
        ),
        provenance=arguments.get("vitkit", {"format": "timm"}),
        interpolation=_interpolation(checkpoint, arguments, config),
    )
    return formats.LoadedWeights(
        config=config,
        state=mapping.to_native_state(checkpoint.tensors, rules, config, checkpoint.origin),
        metadata=metadata,
    )


def _configured_tokens(arguments: Mapping[str, Any]) -> list[str]:
    """Return the tensors of learned tokens that a configuration has: by an argument, or by its architecture's name."""
    architecture = str(arguments.get("architecture", ""))
    registers = next((arguments[name] for name in ("reg_tokens", "num_reg_tokens") if name in arguments), None)
    if registers is None:
        registers = re.search(r"_reg[1-9]|_dinov3", architecture)
    class_token = arguments.get("class_token", re.search(r"^deit|_dinov[23]", architecture))
    return ["cls_token"] * bool(class_token) + ["reg_token"] * bool(registers)


def _interpolation(
    checkpoint: formats.Checkpoint, arguments: Mapping[str, Any], config: ModelConfig
) -> PositionInterpolation:
    """Return the filter on record, else timm's for weights that are not Google's, and Google's for Google's."""
    if interpolation := arguments.get("position_interpolation"):
        return interpolation
    later = _is_later(config) or (isinstance(config, ViTConfig) and config.ln_pre)  # the latter is CLIP
    if not arguments.get("architecture"):
        return "bicubic-no-antialias" if _is_mae(checkpoint) else "bicubic" if later else "paper"
    tag = f"{arguments['architecture']}.{arguments.get('tag') or ''}"
    return "bicubic" if later or re.search(r"^deit|siglip|\.(mae|dino)\b|_ijepa\b", tag) else "paper"


def _is_mae(checkpoint: formats.Checkpoint) -> bool:
    """Return whether a file without a head has MAE's table of sines and cosines: zeros, then rows of the norm² D/2."""
    table = checkpoint.tensors.get("pos_embed")
    if table is None or checkpoint.has("head.bias") or table.ndim != 3 or not checkpoint.has("cls_token"):
        return False
    rows = table[0].float()
    return not rows[0].any() and torch.allclose(rows[1:].square().sum(1), torch.tensor(rows.shape[1] / 2), rtol=1e-3)


def _is_later(config: ModelConfig) -> bool:
    """Return whether a model has options that came after the paper, so that it is not of Google's family."""
    return isinstance(config, ViTConfig) and bool(
        config.layer_scale is not None
        or config.rotary != "none"
        or config.registers
        or config.distillation != "none"
        or config.swiglu
    )


def _fix(tensors: Mapping[str, Tensor], arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """Add the zeros that timm's option qkv_bias=False leaves out; remove those that it adds to CLIP's projection."""
    fixed = mapping.zero_biases(tensors, r"blocks\.\d+\.attn\.qkv")
    zero_bias = "head.bias" in tensors and not tensors["head.bias"].any()
    if "norm_pre.weight" in tensors and zero_bias and arguments.get("projection", True):
        del fixed["head.bias"]  # timm keeps the projection as a head
    return fixed
