"""Infer what a checkpoint of transformers is from its config.json and the names and shapes of its tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypedDict

from vitkit.errors import WeightsError
from vitkit.model.base import Provenance
from vitkit.model.config import ViTConfig, parse_size
from vitkit.model.options import Gelu
from vitkit.weights.formats import Checkpoint
from vitkit.weights.huggingface_families import FAMILIES, Family
from vitkit.weights.infer_sizes import infer_heads, infer_image

_GELU: dict[str, Gelu] = {
    "gelu": "exact",
    "gelu_python": "exact",
    "gelu_new": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_fast": "tanh",
}


class TransformersConfig(TypedDict, total=False):
    """The part of config.json that is read."""

    model_type: str
    hidden_act: str
    image_size: int | tuple[int, int] | None
    num_attention_heads: int | None
    layer_norm_eps: float
    layerscale_value: float
    rope_theta: float
    id2label: dict[str, str] | None
    vitkit: Provenance


def infer_type(checkpoint: Checkpoint) -> str:
    """Return the type of a model without a config.json by the names of its tensors."""
    for family in FAMILIES:
        if family.body and checkpoint.has(f"{family.body}{family.names.patches}.weight"):
            return family.model_type
    if checkpoint.has("embeddings.patch_embeddings.weight"):
        return "dinov3_vit"
    if checkpoint.has("encoder.layer.0.layer_scale1.lambda1"):
        return "dinov2_with_registers" if checkpoint.has("embeddings.register_tokens") else "dinov2"
    if checkpoint.has("embeddings.distillation_token"):
        return "deit"
    return "vit" if checkpoint.has("embeddings.cls_token") else "ijepa"


def infer_config(checkpoint: Checkpoint, family: Family, root: str) -> ViTConfig:
    """Return the configuration of a model of a family whose tensors stand under `root`."""
    settings, names = checkpoint.config, family.names
    width, channels, patch, patch_width = checkpoint.shape(f"{root}{names.patches}.weight", 4)
    if patch != patch_width:
        raise WeightsError(f"{checkpoint.origin} has {patch} x {patch_width} patches; vitkit's patches are square.")
    first = f"{root}{names.blocks}0."
    swiglu = bool(names.gate_up) and checkpoint.has(f"{first}{names.gate_up[0]}.weight")
    mlp = checkpoint.shape(f"{first}{names.gated_down if swiglu else names.down}.weight", 2)[1]
    options: dict[str, Any] = {"swiglu": True} if swiglu else {}
    activation = settings.get("hidden_act", "silu" if swiglu and family.rotary else "gelu")
    if swiglu and family.rotary:
        if activation != "silu":  # DINOv2's SwiGLU has silu whatever its configuration says
            raise WeightsError(f"{checkpoint.origin} gates its MLP by {activation!r}; vitkit's SwiGLU by silu.")
    elif not swiglu:
        options["gelu"] = _gelu(checkpoint, activation)
    if settings.get("image_size") is not None:
        checkpoint = replace(checkpoint, image=parse_size(settings["image_size"]))
    positions = None
    if family.rotary:
        options |= {"positions": "none", "rotary": "centred", "rotary_base": settings.get("rope_theta", 100.0)}
        for option, layer in (("query_bias", names.query), ("key_bias", names.key), ("value_bias", names.value)):
            options[option] = checkpoint.has(f"{first}{layer}.bias")
    else:
        special = family.class_token + family.distillation
        positions = checkpoint.shape(f"{root}embeddings.position_embeddings", 3)[1] - special
    classes = checkpoint.length("classifier.bias") or checkpoint.length("cls_classifier.bias") or 0
    if not family.class_token:
        options |= {"class_token": False, "pool": "gap"}
    if family.distillation:
        options["distillation"] = "heads" if checkpoint.has("cls_classifier.bias") else "token"
    if family.wide_classifier and classes:
        options["pool"] = "token-gap"
    registers = f"{root}embeddings.register_tokens"
    if family.registers and (settings.get("num_register_tokens") or checkpoint.has(registers)):
        options["registers"] = checkpoint.shape(registers, 3)[1]
    if family.layer_scale:
        options["layer_scale"] = settings.get("layerscale_value", 1.0)
    return ViTConfig(
        depth=checkpoint.count(f"{root}{names.blocks}"),
        width=width,
        patch=patch,
        channels=channels,
        mlp=mlp,
        heads=infer_heads(checkpoint, width, settings.get("num_attention_heads"), swiglu=swiglu),
        image=infer_image(checkpoint, positions, patch),
        classes=classes,
        representation=checkpoint.length("pooler.dense.bias") if family.pooler else None,
        eps=settings.get("layer_norm_eps", family.eps),
        **options,
    )


def _gelu(checkpoint: Checkpoint, activation: str) -> Gelu:
    if activation not in _GELU:
        raise WeightsError(
            f"{checkpoint.origin} uses the activation {activation!r}; vitkit's MLP uses GELU.", known=", ".join(_GELU)
        )
    return _GELU[activation]
