"""The sizes and options of timm's ViTs, hybrids and BiT ResNets, inferred from their tensors and config.json."""

import logging
from collections.abc import Mapping
from typing import Any

from vitkit.errors import WeightsError
from vitkit.model.config import ResNetConfig, ViTConfig, parse_size
from vitkit.model.conv_config import ConvConfig
from vitkit.model.options import Gelu, Pool
from vitkit.weights.formats import Checkpoint
from vitkit.weights.infer_sizes import infer_gelu, infer_heads, infer_image, split_positions
from vitkit.weights.timm_known import CLIP_EPS, EPSILONS, PLAIN_EPS

_GELU: dict[str | None, Gelu] = {None: "exact", "gelu": "exact", "gelu_tanh": "tanh", "quick_gelu": "quick"}

_LAYER_SCALE = 1e-5  # timm's initial value for DINOv2, where config.json has none; the weights hold the trained ones

log = logging.getLogger("vitkit")


def infer_vit(checkpoint: Checkpoint, arguments: Mapping[str, Any]) -> ViTConfig:
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
        eps=CLIP_EPS if clip else PLAIN_EPS,
        positions="none" if no_positions else "1d",
        pool=pool,
        class_token=class_token,
        swiglu=swiglu,
        **options,
    )


def infer_resnet(checkpoint: Checkpoint, arguments: Mapping[str, Any]) -> ResNetConfig:
    width, channels, *_ = checkpoint.shape("stem.conv.weight", 4)
    body = ConvConfig(layers=_units(checkpoint, ""), width=width, preactivation=True, **EPSILONS)
    return ResNetConfig(
        body=body,
        channels=channels,
        classes=checkpoint.length("head.fc.bias") or 0,
        image=image_of(arguments) or checkpoint.image or (224, 224),
    )


def image_of(arguments: Mapping[str, Any]) -> tuple[int, int] | None:
    size = arguments.get("img_size") or (arguments.get("input_size") or ())[1:]
    return parse_size(size) if size else None


def _has_swiglu(checkpoint: Checkpoint, arguments: Mapping[str, Any]) -> bool:
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


def _gelu(checkpoint: Checkpoint, name: str | None) -> Gelu:
    if name not in _GELU:
        raise WeightsError(
            f"{checkpoint.origin} uses the activation {name!r}; vitkit's MLP uses GELU.",
            known=", ".join(name for name in _GELU if name),
        )
    return _GELU[name]


def _clip_gelu(checkpoint: Checkpoint, arguments: Mapping[str, Any]) -> Gelu | None:
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


def _infer_stem(checkpoint: Checkpoint) -> ConvConfig | None:
    if not any(name.startswith("patch_embed.backbone.") for name in checkpoint.tensors):
        return None
    return ConvConfig(layers=_units(checkpoint, "patch_embed.backbone."), width=_root_shape(checkpoint)[0], **EPSILONS)


def _root_shape(checkpoint: Checkpoint) -> tuple[int, ...]:
    for name in ("patch_embed.backbone.stem.conv.weight", "patch_embed.backbone.conv.weight"):
        if checkpoint.has(name):
            return checkpoint.shape(name, 4)
    raise WeightsError(
        f"{checkpoint.origin} has a backbone that is not the paper's hybrid.",
        looked_for="patch_embed.backbone.stem.conv.weight",
    )


def _units(checkpoint: Checkpoint, prefix: str) -> tuple[int, ...]:
    stages = checkpoint.count(f"{prefix}stages.")
    return tuple(checkpoint.count(f"{prefix}stages.{stage}.blocks.") for stage in range(stages))
