"""timm's format for ViTs, the hybrids that timm has, and BiT ResNets: config.json and model.safetensors in a folder.

A file alone means timm's defaults: exact GELU, LayerNorm epsilon 1e-6, and the preprocessing that timm has for most
such models; the norms in it tell how it pools.
"""

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Any, TypedDict

import torch
from torch import Tensor

from vitkit.errors import WeightsError
from vitkit.model.allow_list import allow
from vitkit.model.base import Metadata, Provenance
from vitkit.model.build import Model
from vitkit.model.config import ModelConfig, ResNetConfig, ViTConfig, parse_size
from vitkit.model.conv_config import ConvConfig
from vitkit.model.options import Gelu, Pool
from vitkit.model.resize_positions import Interpolation as PositionInterpolation
from vitkit.model.variants import name_of
from vitkit.stored_json import conform
from vitkit.weights import formats, mapping, timm_dinov3
from vitkit.weights.infer_sizes import infer_gelu, infer_heads, infer_image, split_positions
from vitkit.weights.timm_names import resnet_rules, vit_rules
from vitkit.weights.timm_preprocessing import CROP_MODES, crop_pct, preprocessing_of

# timm's kernels are divided by sqrt(variance + 1e-8) and its group norms use torch's epsilon.
_EPSILONS: dict[str, Any] = {"standardise_eps": 1e-8, "standardise_on": "variance", "norm_eps": 1e-5}

_GELU: dict[str | None, Gelu] = {None: "exact", "gelu": "exact", "gelu_tanh": "tanh", "quick_gelu": "quick"}
_POOL: dict[Pool, str] = {"token": "token", "gap": "avg", "gap-norm": "avg", "attention": "map"}

# timm's names for hybrids and ResNets; for a pure ViT, model_args give every size on top of a base architecture.
_HYBRIDS = {
    "R+Ti/16": "vit_tiny_r_s16_p8_224",
    "R26+S/32": "vit_small_r26_s32_224",
    "R26+B/32": "vit_base_r26_s32_224",
    "R50+B/16": "vit_base_r50_s16_224",
    "R50+L/32": "vit_large_r50_s32_224",
}
_RESNETS = {
    "R50x1": "resnetv2_50x1_bit",
    "R50x3": "resnetv2_50x3_bit",
    "R101x1": "resnetv2_101x1_bit",
    "R101x3": "resnetv2_101x3_bit",
    "R152x2": "resnetv2_152x2_bit",
    "R152x4": "resnetv2_152x4_bit",
}


# Architectures whose MLPs use timm's default, an exact GELU.
_PLAIN = re.compile(r"(?!.*siglip)(vit_(tiny|small|base|large|huge|giant|gigantic)_(patch\d|r)|resnetv2_|deit)")

_LAYER_SCALE = 1e-5  # timm's initial value for DINOv2, where config.json has none; the weights hold the trained ones

log = logging.getLogger("vitkit")

# The options that `conversion_losses` judges and `config_of` writes.
KNOWN = allow(
    "the timm format",
    vit="depth width mlp heads patch stem image channels classes positions inject pool class_token representation "
    "norm axial gelu eps dropout stochastic_depth class_position distillation registers swiglu layer_scale",
    plain="patch_bias projection normalise ln_pre query_bias key_bias value_bias rotary rotary_base rotary_layout "
    "content induced seeds",
    only={
        "attention": (None,),
        "gelu": ("tanh", "exact"),
        "pool": ("token", "gap", "gap-norm", "attention"),
        "distillation": ("none", "heads"),
    },
    resnet="body image channels classes",
    conv="layers width preactivation standardise_eps standardise_on norm_eps attention",
)


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
    position_interpolation: PositionInterpolation  # vitkit's own
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
        checkpoint = replace(checkpoint, image=_image(arguments) or checkpoint.image)
        for name in _configured_tokens(arguments):
            checkpoint.shape(name, 3)  # without it, the rest would be a model, too: another one
        if timm_dinov3.recognises(checkpoint.tensors):
            config = timm_dinov3.infer(checkpoint, arguments)
        else:
            checkpoint = replace(checkpoint, tensors=_fix(checkpoint.tensors))
            config = infer_vit(checkpoint, arguments)
        rules = list(vit_rules(config))
    else:
        config = _infer_resnet(checkpoint, arguments)
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


def tensors_of(model: Model) -> dict[str, Tensor]:
    if isinstance(model.config, ResNetConfig):
        return mapping.to_foreign_tensors(model, resnet_rules(model.config))
    assert isinstance(model.config, ViTConfig)
    return mapping.to_foreign_tensors(model, vit_rules(model.config))


def config_of(model: Model) -> dict[str, Any]:
    """Return the config.json for `timm.create_model("local-dir:FOLDER", pretrained=True)`."""
    config, preprocessing = model.config, model.metadata.preprocessing
    name = name_of(config) or ""
    architecture, arguments = _architecture(config), {}
    if isinstance(config, ResNetConfig):
        architecture, pool = _RESNETS[name], "avg"
    else:
        assert isinstance(config, ViTConfig)
        pool = _POOL[config.pool]
        arguments = {
            "img_size": list(config.image),
            "class_token": config.class_token,
            "global_pool": pool,
            "act_layer": "gelu_tanh" if config.gelu == "tanh" else "gelu",
        }
        if timm_dinov3.is_dinov3(config):
            architecture, arguments = timm_dinov3.architecture_of(config)
            arguments["img_size"] = list(config.image)
        elif config.swiglu:  # the architecture has SwiGLU, and its activation
            del arguments["act_layer"]
        if config.registers and not timm_dinov3.is_dinov3(config):
            arguments["reg_tokens"] = config.registers
        if config.layer_scale is not None:
            arguments["init_values"] = config.layer_scale
        if config.class_token and config.positions != "none" and (config.registers or not config.class_position):
            arguments["no_embed_class"] = not config.class_position
        if pool == "avg" and not timm_dinov3.is_dinov3(config):
            arguments["fc_norm"] = config.pool == "gap-norm"
        if config.positions == "none" and not timm_dinov3.is_dinov3(config):
            arguments["pos_embed"] = "none"
        if config.stem:
            architecture = _HYBRIDS[name]
        else:
            arguments |= {
                "patch_size": config.patch,
                "embed_dim": config.width,
                "depth": config.depth,
                "num_heads": config.heads,
                "mlp_ratio": _mlp_ratio(config),
            }
    pretrained = {
        "input_size": [config.channels, *config.image],
        "fixed_input_size": isinstance(config, ViTConfig),
        "num_classes": config.classes,
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "interpolation": preprocessing.interpolation,
        "crop_pct": crop_pct(model),
        "crop_mode": {ours: theirs for theirs, ours in CROP_MODES.items()}[preprocessing.resize],
    }
    if config.channels != 3:
        arguments["in_chans"] = config.channels
    record = {
        "architecture": architecture,
        "num_classes": config.classes,
        "num_features": model.representation_width,
        "global_pool": pool,
        "model_args": arguments,
        "pretrained_cfg": pretrained,
        "preprocessing": asdict(preprocessing),
        "position_interpolation": model.metadata.interpolation,
        "vitkit": dict(model.metadata.provenance),
    }
    if model.metadata.labels:
        record["label_names"] = list(model.metadata.labels)
    return record


def conversion_losses(model: Model) -> formats.ConversionLosses:
    config, dropped = model.config, formats.training_settings(model.config)
    if isinstance(config, ViTConfig) and timm_dinov3.is_dinov3(config):
        return formats.ConversionLosses(unsupported=timm_dinov3.unsupported(config), dropped=dropped)
    unsupported = formats.unknown_options(KNOWN, config)
    if not isinstance(config, ViTConfig | ResNetConfig):
        return formats.ConversionLosses(unsupported=unsupported, dropped=dropped)
    conv = config.body if isinstance(config, ResNetConfig) else config.stem
    if conv and conv != replace(conv, **_EPSILONS):
        dropped.append("the convolutions' epsilons: timm's differ")
    if isinstance(config, ResNetConfig):
        if name_of(config) not in _RESNETS:
            unsupported.append(f"this ResNet: timm has {', '.join(_RESNETS)}")
        return formats.ConversionLosses(unsupported=unsupported, dropped=dropped)
    if config.registers and config.class_position and config.class_token and config.positions != "none":
        unsupported.append(
            "a position of the class token beside registers without: in timm, all of them have positions or none has"
        )
    if config.distillation != "none" and (config.swiglu or config.registers or config.layer_scale is not None):
        unsupported.append("a distillation token with registers, LayerScale or SwiGLU: timm's DeiT has none of them")
    if config.positions not in ("1d", "none") or config.inject != "stem":
        unsupported.append(
            f"positions={config.positions!r} injected at {config.inject!r}: timm's ViT has one 1-D table, at the stem"
        )
    if config.norm == "post" or config.axial:
        unsupported.append("post-norm or axial blocks")
    if config.representation:
        unsupported.append("pre_logits, the tanh layer of the pre-training head: timm dropped it")
    if config.stem and name_of(config) not in _HYBRIDS:
        unsupported.append(f"this hybrid: timm has {', '.join(_HYBRIDS)}")
    changed: list[str] = []
    (changed if abs(config.eps - 1e-6) > formats.NEGLIGIBLE_EPS else dropped).extend(
        formats.epsilon_difference(config.eps, 1e-6)
    )
    return formats.ConversionLosses(unsupported=unsupported, changed=changed, dropped=dropped)


def infer_vit(checkpoint: formats.Checkpoint, arguments: Mapping[str, Any]) -> ViTConfig:
    width, embedded, patch, patch_width = checkpoint.shape("patch_embed.proj.weight", 4)
    if patch != patch_width:
        raise WeightsError(f"{checkpoint.origin} has {patch} x {patch_width} patches; vitkit's patches are square.")
    stem = _infer_stem(checkpoint)
    class_token = checkpoint.has("cls_token")
    pool: Pool
    if checkpoint.has("fc_norm.weight"):
        pool = "gap-norm"
    elif checkpoint.has("attn_pool.latent"):
        pool = "attention"
    else:
        pooling = arguments.get("global_pool", "token" if class_token else "avg")
        if pooling not in ("token", "avg") or arguments.get("pool_include_prefix"):
            raise WeightsError(
                f"{checkpoint.origin} pools by {pooling!r}"
                + (" with its class token" if arguments.get("pool_include_prefix") else "")
                + "; vitkit reads token, avg and map."
            )
        pool = "gap" if pooling == "avg" or not class_token else "token"
    # a missing table means a model without positions only where the configuration says so, otherwise a damaged file
    no_positions = arguments.get("pos_embed") in ("", "none")
    clip = checkpoint.has("norm_pre.weight")
    projected = clip and checkpoint.has("head.weight") and not checkpoint.has("head.bias")
    distilled, scaled = checkpoint.has("dist_token"), checkpoint.has("blocks.0.ls1.gamma")
    stride = patch * (stem.stride if stem else 1)
    options: dict[str, Any] = {}
    patches = None
    if not no_positions:
        rows = checkpoint.shape("pos_embed", 3)[1]
        patches = split_positions(checkpoint, rows, stride, special=class_token + distilled)
        options["class_position"] = patches < rows or not class_token
    swiglu = _has_swiglu(checkpoint, arguments)
    if not swiglu:
        options["gelu"] = (
            infer_gelu(checkpoint, _clip_gelu(checkpoint, arguments))
            if clip
            else _gelu(checkpoint, arguments.get("act_layer"))
        )
    if scaled:
        options["layer_scale"] = arguments.get("init_values") or _LAYER_SCALE
    if distilled:
        options["distillation"] = "heads" if checkpoint.has("head_dist.bias") else "token"
    if checkpoint.has("reg_token"):
        options["registers"] = checkpoint.shape("reg_token", 3)[1]
    return ViTConfig(
        depth=checkpoint.count("blocks."),
        width=width,
        mlp=checkpoint.shape("blocks.0.mlp.fc1.weight", 2)[0] // (2 if swiglu else 1),
        heads=infer_heads(checkpoint, width, arguments.get("num_heads"), swiglu=swiglu),
        patch=patch,
        stem=stem,
        image=infer_image(checkpoint, patches, stride),
        channels=_root_shape(checkpoint)[1] if stem else embedded,
        classes=checkpoint.length("head.bias") or 0,
        patch_bias=not clip,
        ln_pre=clip,
        projection=checkpoint.shape("head.weight", 2)[0] if projected else None,
        eps=1e-5 if clip else 1e-6,
        positions="none" if no_positions else "1d",
        pool=pool,
        class_token=class_token,
        swiglu=swiglu,
        **options,
    )


def _configured_tokens(arguments: Mapping[str, Any]) -> list[str]:
    """Return the tensors of learned tokens that a configuration has: by an argument, or by its architecture's name."""
    architecture = str(arguments.get("architecture", ""))
    registers = next((arguments[name] for name in ("reg_tokens", "num_reg_tokens") if name in arguments), None)
    if registers is None:
        registers = re.search(r"_reg[1-9]|_dinov3", architecture)
    class_token = arguments.get("class_token", re.search(r"^deit|_dinov[23]", architecture))
    return ["cls_token"] * bool(class_token) + ["reg_token"] * bool(registers)


def _has_swiglu(checkpoint: formats.Checkpoint, arguments: Mapping[str, Any]) -> bool:
    """Return whether the first layer of the MLPs is gate and value in one, as in DINOv2's g."""
    up, down = (checkpoint.shape(f"blocks.0.mlp.{layer}.weight", 2) for layer in ("fc1", "fc2"))
    architecture = str(arguments.get("architecture", ""))
    if up[0] != 2 * down[1]:
        return False
    if architecture and "dinov2" not in architecture:
        raise WeightsError(
            f"{checkpoint.origin} has MLPs with a gate, {up[0]} → {down[1]}; nothing says how {architecture} gates.",
            known="the SwiGLU of DINOv2's g",
        )
    return True


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


def _architecture(config: ModelConfig) -> str:
    """Return timm's architecture that has the parts which no argument adds; arguments give it any size."""
    if isinstance(config, ViTConfig) and config.swiglu:
        return "vit_giant_patch14_dinov2"
    if isinstance(config, ViTConfig) and config.distillation != "none":
        return "deit_base_distilled_patch16_224"
    return "vit_base_patch16_224"


def _clip_gelu(checkpoint: formats.Checkpoint, arguments: Mapping[str, Any]) -> Gelu | None:
    """Return the GELU of a CLIP tower that the configuration names; timm's name for OpenAI's weights leaves it open."""
    name, architecture = arguments.get("act_layer"), str(arguments.get("architecture", ""))
    if name is not None or not architecture:
        return _gelu(checkpoint, name) if name is not None else None
    if "quickgelu" in architecture:
        return "quick"
    if "quickgelu" in str(arguments.get("notes", "")).lower():
        log.warning(
            "%s: these weights were trained with quick-GELU, which vitkit uses; timm's %s has the exact one",
            checkpoint.origin,
            architecture,
        )
        return "quick"
    return "exact"


def _infer_stem(checkpoint: formats.Checkpoint) -> ConvConfig | None:
    if not any(name.startswith("patch_embed.backbone.") for name in checkpoint.tensors):
        return None
    return ConvConfig(layers=_units(checkpoint, "patch_embed.backbone."), width=_root_shape(checkpoint)[0], **_EPSILONS)


def _infer_resnet(checkpoint: formats.Checkpoint, arguments: Mapping[str, Any]) -> ResNetConfig:
    width, channels, *_ = checkpoint.shape("stem.conv.weight", 4)
    body = ConvConfig(layers=_units(checkpoint, ""), width=width, preactivation=True, **_EPSILONS)
    return ResNetConfig(
        body=body,
        channels=channels,
        classes=checkpoint.length("head.fc.bias") or 0,
        image=_image(arguments) or checkpoint.image or (224, 224),
    )


def _root_shape(checkpoint: formats.Checkpoint) -> tuple[int, ...]:
    for name in ("patch_embed.backbone.stem.conv.weight", "patch_embed.backbone.conv.weight"):
        if checkpoint.has(name):
            return checkpoint.shape(name, 4)
    raise WeightsError(
        f"{checkpoint.origin} has a backbone that is not the paper's hybrid.",
        looked_for="patch_embed.backbone.stem.conv.weight",
    )


def _units(checkpoint: formats.Checkpoint, prefix: str) -> tuple[int, ...]:
    stages = checkpoint.count(f"{prefix}stages.")
    return tuple(checkpoint.count(f"{prefix}stages.{stage}.blocks.") for stage in range(stages))


def _mlp_ratio(config: ViTConfig) -> float:
    """Return the ratio for which timm's int(width · ratio) is the MLP width; a quotient rounded down gives one less."""
    packed = config.swiglu and not timm_dinov3.is_dinov3(config)  # gate and value in one layer
    hidden = 2 * config.mlp if packed else config.mlp
    ratio = hidden / config.width
    return ratio if int(config.width * ratio) == hidden else (hidden + 0.5) / config.width


def _gelu(checkpoint: formats.Checkpoint, name: str | None) -> Gelu:
    if name not in _GELU:
        raise WeightsError(
            f"{checkpoint.origin} uses the activation {name!r}; vitkit's MLP uses GELU.",
            known=", ".join(name for name in _GELU if name),
        )
    return _GELU[name]


def _image(arguments: Mapping[str, Any]) -> tuple[int, int] | None:
    size = arguments.get("img_size") or (arguments.get("input_size") or ())[1:]
    return parse_size(size) if size else None


def _fix(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add the zeros that timm's option qkv_bias=False leaves out; remove those that it adds to CLIP's projection."""
    fixed = mapping.zero_biases(tensors, r"blocks\.\d+\.attn\.qkv")
    if "norm_pre.weight" in tensors and "head.bias" in tensors and not tensors["head.bias"].any():
        del fixed["head.bias"]  # timm keeps the projection as a head
    return fixed
