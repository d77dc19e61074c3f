"""timm's architectures and epsilons, the options that its format holds, and what a conversion would lose."""

from dataclasses import replace
from typing import Any

from vitkit.model.allow_list import allow
from vitkit.model.build import Model
from vitkit.model.config import ResNetConfig, ViTConfig
from vitkit.model.variants import name_of
from vitkit.weights import formats, timm_dinov3

# timm's kernels are divided by sqrt(variance + 1e-8) and its group norms use torch's epsilon.
EPSILONS: dict[str, Any] = {"standardise_eps": 1e-8, "standardise_on": "variance", "norm_eps": 1e-5}

# timm's names for hybrids and ResNets; for a pure ViT, model_args give every size on top of a base architecture.
HYBRIDS = {
    "R+Ti/16": "vit_tiny_r_s16_p8_224",
    "R26+S/32": "vit_small_r26_s32_224",
    "R26+B/32": "vit_base_r26_s32_224",
    "R50+B/16": "vit_base_r50_s16_224",
    "R50+L/32": "vit_large_r50_s32_224",
}
RESNETS = {
    "R50x1": "resnetv2_50x1_bit",
    "R50x3": "resnetv2_50x3_bit",
    "R101x1": "resnetv2_101x1_bit",
    "R101x3": "resnetv2_101x3_bit",
    "R152x2": "resnetv2_152x2_bit",
    "R152x4": "resnetv2_152x4_bit",
}

PLAIN_EPS, CLIP_EPS = 1e-6, 1e-5  # of the LayerNorms; no argument changes those of an architecture

# The options that `conversion_losses` judges and `config_of` writes.
KNOWN = allow(
    "the timm format",
    vit="depth width mlp heads patch stem image channels classes positions inject pool class_token representation "
    "norm axial gelu eps dropout stochastic_depth class_position distillation registers swiglu layer_scale ln_pre "
    "patch_bias projection",
    plain="normalise query_bias key_bias value_bias rotary rotary_base rotary_layout content induced seeds",
    only={
        "attention": (None,),
        "gelu": ("tanh", "exact", "quick"),
        "pool": ("token", "gap", "gap-norm", "attention"),
        "distillation": ("none", "heads"),
    },
    resnet="body image channels classes",
    conv="layers width preactivation standardise_eps standardise_on norm_eps attention",
)


def conversion_losses(model: Model) -> formats.ConversionLosses:
    config, dropped = model.config, formats.training_settings(model.config)
    if isinstance(config, ViTConfig) and timm_dinov3.is_dinov3(config):
        return formats.ConversionLosses(unsupported=timm_dinov3.unsupported(config), dropped=dropped)
    unsupported = formats.unknown_options(KNOWN, config)
    if not isinstance(config, ViTConfig | ResNetConfig):
        return formats.ConversionLosses(unsupported=unsupported, dropped=dropped)
    conv = config.body if isinstance(config, ResNetConfig) else config.stem
    if conv and conv != replace(conv, **EPSILONS):
        dropped.append("the convolutions' epsilons: timm's differ")
    if isinstance(config, ResNetConfig):
        if name_of(config) not in RESNETS:
            unsupported.append(f"this ResNet: timm has {', '.join(RESNETS)}")
        return formats.ConversionLosses(unsupported=unsupported, dropped=dropped)
    if config.registers and config.class_position and config.class_token and config.positions != "none":
        unsupported.append(
            "a position of the class token beside registers without: in timm, all of them have positions or none has"
        )
    if config.distillation != "none" and (config.swiglu or config.registers or config.layer_scale is not None):
        unsupported.append("a distillation token with registers, LayerScale or SwiGLU: timm's DeiT has none of them")
    unsupported += _clip_losses(config)
    if config.positions not in ("1d", "none") or config.inject != "stem":
        unsupported.append(
            f"positions={config.positions!r} injected at {config.inject!r}: timm's ViT has one 1-D table, at the stem"
        )
    if config.norm == "post" or config.axial:
        unsupported.append("post-norm or axial blocks")
    if config.representation:
        unsupported.append("pre_logits, the tanh layer of the pre-training head: timm dropped it")
    if config.stem and name_of(config) not in HYBRIDS:
        unsupported.append(f"this hybrid: timm has {', '.join(HYBRIDS)}")
    changed: list[str] = []
    eps = CLIP_EPS if config.ln_pre else PLAIN_EPS
    (changed if abs(config.eps - eps) > formats.NEGLIGIBLE_EPS else dropped).extend(
        formats.epsilon_difference(config.eps, eps)
    )
    return formats.ConversionLosses(unsupported=unsupported, changed=changed, dropped=dropped)


def _clip_losses(config: ViTConfig) -> list[str]:
    """Return what timm's CLIP towers cannot hold, and what of CLIP its other models cannot."""
    losses = []
    if config.ln_pre and config.patch_bias:
        losses.append("ln_pre with a bias of the patch embedding: timm's pre_norm leaves that bias out")
    if not config.ln_pre and not config.patch_bias:
        losses.append("patch_bias=False without ln_pre: timm leaves that bias out with pre_norm alone")
    if config.projection and not config.ln_pre:
        losses.append(f"projection={config.projection} without ln_pre: timm has a projection in CLIP towers alone")
    if config.projection and config.classes:
        losses.append(f"a classifier on top of CLIP's projection (classes={config.classes}): timm's tower has one head")
    if config.ln_pre and (config.stem or config.swiglu or config.distillation != "none"):
        losses.append("ln_pre with a stem, SwiGLU or a distillation token: timm's CLIP towers have none of them")
    return losses
