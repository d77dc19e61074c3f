"""The same Vision Transformer in other libraries, in their fastest usual setup, with random weights.

Training is under autocast in bf16, as their own scripts do it, with fused AdamW and the gradient clipped at 1;
inference has its weights in bf16. `fast norm` is timm's own option: LayerNorm that autocast does not widen to float32.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.bench.timing import Work
from vitkit.bench.work import SETTINGS, labelled_batch, random_images
from vitkit.model.config import ViTConfig


def timm(config: ViTConfig, *, fast_norm: bool = False) -> nn.Module:
    from timm.layers import set_fast_norm
    from timm.models.vision_transformer import VisionTransformer

    set_fast_norm(fast_norm)  # layers keep the setting of their construction
    try:
        if config.rotary != "none":
            return _timm_dinov3(config)
        return VisionTransformer(
            img_size=config.image,
            patch_size=config.patch,
            in_chans=config.channels,
            num_classes=config.classes,
            embed_dim=config.width,
            depth=config.depth,
            num_heads=config.heads,
            mlp_ratio=config.mlp / config.width,
            act_layer=partial(nn.GELU, approximate=_approximate(config)),
        )
    finally:
        set_fast_norm(False)


def _timm_dinov3(config: ViTConfig) -> nn.Module:
    """timm's DINOv3, for one size of images, which is faster than its default for any."""
    from timm import create_model

    name = {192: "tiny", 384: "small", 768: "base", 1024: "large"}[config.width]
    size = {"img_size": config.image, "dynamic_img_size": False}
    return create_model(f"vit_{name}_patch{config.patch}_dinov3", num_classes=config.classes, **size)


def transformers(config: ViTConfig) -> nn.Module:
    from transformers import ViTConfig as Config
    from transformers import ViTForImageClassification

    return ViTForImageClassification(
        Config(
            image_size=config.image[0],
            patch_size=config.patch,
            num_channels=config.channels,
            num_labels=config.classes,
            hidden_size=config.width,
            num_hidden_layers=config.depth,
            num_attention_heads=config.heads,
            intermediate_size=config.mlp,
            attn_implementation="sdpa",
            hidden_act="gelu_pytorch_tanh" if config.gelu == "tanh" else "gelu",
        )
    )


def torchvision(config: ViTConfig) -> nn.Module:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(
        image_size=config.image[0],
        patch_size=config.patch,
        num_layers=config.depth,
        num_heads=config.heads,
        hidden_dim=config.width,
        mlp_dim=config.mlp,
        num_classes=config.classes,
    )
    for module in model.modules():
        if isinstance(module, nn.GELU):
            module.approximate = _approximate(config)
    return model


def _approximate(config: ViTConfig) -> str:
    return "tanh" if config.gelu == "tanh" else "none"


PEERS: dict[str, Callable[[ViTConfig], nn.Module]] = {
    "timm": timm,
    "transformers": transformers,
    "torchvision": torchvision,
}


def available() -> dict[str, str]:
    """Return the versions of the libraries that can be imported."""
    versions = {}
    for name in PEERS:
        try:
            importlib.import_module(name)
            versions[name] = importlib.metadata.version(name)
        except Exception:  # a torchvision built for another torch raises various errors
            continue
    return versions


def training_step(model: nn.Module, config: ViTConfig, device: torch.device, *, batch: int, compiled: bool) -> Work:
    model.to(device).train()
    compiled_model = torch.compile(model) if compiled else model
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        parameters, lr=SETTINGS.lr, weight_decay=SETTINGS.optimizer.weight_decay, fused=device.type == "cuda" or None
    )
    pixels, targets = labelled_batch(config, batch, device)

    def step() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            loss = F.cross_entropy(_logits(compiled_model(pixels)), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, SETTINGS.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def inference_call(model: nn.Module, config: ViTConfig, device: torch.device, *, batch: int, compiled: bool) -> Work:
    """Return a forward pass; compiled single images use CUDA graphs (reduce-overhead)."""
    model.to(device, torch.bfloat16).eval()
    compiled_model = torch.compile(model, mode="reduce-overhead" if batch == 1 else None) if compiled else model
    images = random_images(config, batch, device).bfloat16()

    def call() -> Tensor:
        with torch.inference_mode():
            return _logits(compiled_model(images))

    return call


def _logits(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.logits
