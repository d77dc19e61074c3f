"""Write timm's format: a model's tensors in timm's names, and the config.json with which timm builds it."""

from dataclasses import asdict
from typing import Any

from torch import Tensor

from vitkit.model.build import Model
from vitkit.model.config import ModelConfig, ResNetConfig, ViTConfig
from vitkit.model.options import Gelu, Pool
from vitkit.model.variants import name_of
from vitkit.weights import mapping, timm_dinov3
from vitkit.weights.timm_known import HYBRIDS, RESNETS
from vitkit.weights.timm_names import resnet_rules, vit_rules
from vitkit.weights.timm_preprocessing import CROP_MODES, crop_pct

_POOL: dict[Pool, str] = {"token": "token", "gap": "avg", "gap-norm": "avg", "attention": "map"}
_ACT_LAYER: dict[Gelu, str] = {"exact": "gelu", "tanh": "gelu_tanh", "quick": "quick_gelu"}


def tensors_of(model: Model) -> dict[str, Tensor]:
    if isinstance(model.config, ResNetConfig):
        return mapping.to_foreign_tensors(model, resnet_rules(model.config))
    assert isinstance(model.config, ViTConfig)
    tensors = mapping.to_foreign_tensors(model, vit_rules(model.config))
    if model.config.projection:  # timm's head has a bias
        tensors["head.bias"] = tensors["head.weight"].new_zeros(model.config.projection)
    return tensors


def config_of(model: Model) -> dict[str, Any]:
    """Return the config.json for `timm.create_model("local-dir:FOLDER", pretrained=True)`."""
    config, preprocessing = model.config, model.metadata.preprocessing
    name = name_of(config) or ""
    architecture, arguments, outputs = _architecture(config), {}, config.classes
    if isinstance(config, ResNetConfig):
        architecture, pool = RESNETS[name], "avg"
    else:
        assert isinstance(config, ViTConfig)
        pool, outputs = _POOL[config.pool], config.projection or config.classes
        arguments = {
            "img_size": list(config.image),
            "class_token": config.class_token,
            "global_pool": pool,
            "act_layer": _ACT_LAYER[config.gelu],
        }
        if timm_dinov3.is_dinov3(config):
            architecture, arguments = timm_dinov3.architecture_of(config)
            arguments["img_size"] = list(config.image)
        elif config.swiglu:  # the architecture has SwiGLU, and its activation
            del arguments["act_layer"]
        if config.registers and not timm_dinov3.is_dinov3(config):
            arguments["reg_tokens"] = config.registers
        if config.ln_pre:
            arguments["pre_norm"] = True
        if config.layer_scale is not None:
            arguments["init_values"] = config.layer_scale
        if config.class_token and config.positions != "none" and (config.registers or not config.class_position):
            arguments["no_embed_class"] = not config.class_position
        if pool == "avg" and not timm_dinov3.is_dinov3(config):
            arguments["fc_norm"] = config.pool == "gap-norm"
        if config.positions == "none" and not timm_dinov3.is_dinov3(config):
            arguments["pos_embed"] = "none"
        if config.stem:
            architecture = HYBRIDS[name]
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
        "num_classes": outputs,
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
        "num_classes": outputs,
        "num_features": config.width if isinstance(config, ViTConfig) else model.representation_width,
        "global_pool": pool,
        "model_args": arguments,
        "pretrained_cfg": pretrained,
        "preprocessing": asdict(preprocessing),
        "position_interpolation": model.metadata.interpolation,
        "vitkit": dict(model.metadata.provenance),
    }
    if isinstance(config, ViTConfig) and config.ln_pre:
        record["projection"] = config.projection  # tells it from a classifier whose biases are zero
    if model.metadata.labels:
        record["label_names"] = list(model.metadata.labels)
    return record


def _architecture(config: ModelConfig) -> str:
    """Return timm's architecture that has the parts which no argument adds; arguments give it any size."""
    if isinstance(config, ViTConfig) and config.swiglu:
        return "vit_giant_patch14_dinov2"
    if isinstance(config, ViTConfig) and config.distillation != "none":
        return "deit_base_distilled_patch16_224"
    if isinstance(config, ViTConfig) and config.ln_pre:
        return f"vit_base_patch16_clip_{'quickgelu_' if config.gelu == 'quick' else ''}224"
    return "vit_base_patch16_224"


def _mlp_ratio(config: ViTConfig) -> float:
    """Return the ratio for which timm's int(width · ratio) is the MLP width; a quotient rounded down gives one less."""
    packed = config.swiglu and not timm_dinov3.is_dinov3(config)  # gate and value in one layer
    hidden = 2 * config.mlp if packed else config.mlp
    ratio = hidden / config.width
    return ratio if int(config.width * ratio) == hidden else (hidden + 0.5) / config.width
