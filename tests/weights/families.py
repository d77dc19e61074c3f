"""Small models of transformers with random weights, one of each class that vitkit reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8, "image_size": 32}
MLP = {"intermediate_size": 48}
DECODER = {
    "decoder_hidden_size": 16,
    "decoder_num_attention_heads": 2,
    "decoder_num_hidden_layers": 1,
    "decoder_intermediate_size": 16,
}

# class, options of its config
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "DINOv2": ("Dinov2Model", {"mlp_ratio": 2}),
    "DINOv2 with SwiGLU": ("Dinov2Model", {"use_swiglu_ffn": True}),
    "DINOv2 classifier": ("Dinov2ForImageClassification", {"num_labels": 5}),
    "DINOv2 with registers": ("Dinov2WithRegistersModel", {"num_register_tokens": 4}),
    "DINOv2 with registers, classifier": ("Dinov2WithRegistersForImageClassification", {"num_labels": 5}),
    "DINOv3": ("DINOv3ViTModel", {**MLP, "num_register_tokens": 4}),
    "DINOv3 without registers": ("DINOv3ViTModel", {**MLP, "num_register_tokens": 0, "rope_theta": 50.0}),
    "DINOv3 with SwiGLU": (
        "DINOv3ViTModel",
        {**MLP, "num_register_tokens": 4, "use_gated_mlp": True, "hidden_act": "silu"},
    ),
    "DINOv3 7B": (
        "DINOv3ViTModel",
        {
            **MLP,
            "num_register_tokens": 4,
            "use_gated_mlp": True,
            "hidden_act": "silu",
            "query_bias": False,
            "value_bias": False,
        },
    ),
    "MAE": ("ViTMAEModel", {**MLP, "mask_ratio": 0.0}),
    "I-JEPA": ("IJepaModel", MLP),
    "I-JEPA classifier": ("IJepaForImageClassification", {**MLP, "num_labels": 5}),
    "DeiT": ("DeiTModel", MLP),
    "DeiT classifier": ("DeiTForImageClassification", {**MLP, "num_labels": 5}),
    "DeiT with teacher": ("DeiTForImageClassificationWithTeacher", {**MLP, "num_labels": 5}),
}


def build(family: str) -> nn.Module:
    """Return a model of transformers whose tensors are all random, the mask token excepted, which stays zero."""
    name, options = FAMILIES[family]
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**SIZE, **options)).eval()
    with torch.no_grad():
        for tensor_name, parameter in model.named_parameters():
            if not tensor_name.endswith("mask_token"):
                parameter.copy_(torch.randn_like(parameter) * 0.2)
    return model


def save(family: str, folder: Path) -> nn.Module:
    model = build(family)
    model.save_pretrained(folder)
    return model


@torch.no_grad()
def features(model: nn.Module, images: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return logits or pooled features, if the class has them, and all tokens after the last norm."""
    arguments: dict[str, Any] = {}
    if not type(model).__name__.startswith(("Dino", "DINO")):  # those always interpolate
        arguments["interpolate_pos_encoding"] = True
    if type(model).__name__ == "ViTMAEModel":  # keeps the patches in order
        patches = (images.shape[2] // 8) * (images.shape[3] // 8)
        arguments["noise"] = torch.arange(patches, dtype=torch.float32).expand(len(images), -1)
    tokens: list[Tensor] = []
    norm: Any = next(module for name, module in model.named_modules() if name.split(".")[-1] in ("layernorm", "norm"))
    handle = norm.register_forward_hook(lambda *call: tokens.append(call[2]))
    output = model(images, **arguments)
    handle.remove()
    pooled = getattr(output, "logits", None)
    return (getattr(output, "pooler_output", None) if pooled is None else pooled), tokens[0]


Save = Callable[[str, Path], nn.Module]
