"""DINOv3 in timm, a model of its Eva class: other names than timm's ViT, rotary positions, biases of q and v only."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from vitkit.errors import WeightsError
from vitkit.model.allow_list import allow
from vitkit.model.config import ViTConfig
from vitkit.weights import mapping
from vitkit.weights.formats import Checkpoint
from vitkit.weights.infer_sizes import infer_heads, infer_image

EPS, BASE, IMAGE = 1e-5, 100.0, 256  # of every DINOv3 in timm; a file alone holds none of them

KNOWN = allow(
    "the timm format (DINOv3)",
    vit="depth width mlp heads patch image channels classes positions pool class_token rotary rotary_base registers "
    "layer_scale query_bias key_bias value_bias swiglu gelu eps dropout stochastic_depth",
    plain="stem patch_bias inject rotary_layout class_position distillation representation projection normalise norm "
    "ln_pre axial content induced seeds",
    only={
        "gelu": ("tanh", "exact"),
        "pool": ("token", "gap"),
        "class_token": (True,),
        "positions": ("none",),
        "rotary": ("centred",),
        "key_bias": (False,),
        "eps": (EPS,),
    },
)


def recognises(names: Collection[str]) -> bool:
    return "blocks.0.gamma_1" in names and "pos_embed" not in names


def is_dinov3(config: object) -> bool:
    return isinstance(config, ViTConfig) and config.rotary != "none"


def rules(config: ViTConfig) -> Iterator[mapping.Rule]:
    yield mapping.patch_convolution("patches.project.weight", "patch_embed.proj.weight", config.channels, config.patch)
    yield from mapping.same_layer("patches.project", "patch_embed.proj", ["bias"])
    yield mapping.batched("class_token", "cls_token")
    if config.registers:
        yield mapping.batched("register_tokens", "reg_token")
    for layer in range(config.depth):
        ours, theirs = f"encoder.blocks.{layer}", f"blocks.{layer}"
        yield from mapping.same_layer(f"{ours}.attention_norm", f"{theirs}.norm1")
        yield mapping.unchanged(f"{ours}.attention.qkv.weight", f"{theirs}.attn.qkv.weight")
        if config.query_bias:
            biases = [f"{theirs}.attn.q_bias", f"{theirs}.attn.v_bias"]
            yield mapping.concatenated(f"{ours}.attention.qkv.bias", biases)
        yield from mapping.same_layer(f"{ours}.attention.out", f"{theirs}.attn.proj")
        yield mapping.unchanged(f"{ours}.attention_scale.gamma", f"{theirs}.gamma_1")
        yield from mapping.same_layer(f"{ours}.mlp_norm", f"{theirs}.norm2")
        for name in ("weight", "bias") if config.swiglu else ():
            gate_and_value = [f"{theirs}.mlp.{part}.{name}" for part in ("fc1_g", "fc1_x")]
            yield mapping.concatenated(f"{ours}.mlp.gate_up.{name}", gate_and_value)
        if not config.swiglu:
            yield from mapping.same_layer(f"{ours}.mlp.up", f"{theirs}.mlp.fc1")
        yield from mapping.same_layer(f"{ours}.mlp.down", f"{theirs}.mlp.fc2")
        yield mapping.unchanged(f"{ours}.mlp_scale.gamma", f"{theirs}.gamma_2")
    yield from mapping.same_layer("encoder.norm", "norm")
    if config.classes:
        yield from mapping.same_layer("head.logits", "head")


def infer(checkpoint: Checkpoint, arguments: Mapping[str, Any]) -> ViTConfig:
    width, channels, patch, patch_width = checkpoint.shape("patch_embed.proj.weight", 4)
    if patch != patch_width:
        raise WeightsError(f"{checkpoint.origin} has {patch} x {patch_width} patches; vitkit's patches are square.")
    pooling = arguments.get("global_pool", "avg")  # timm's default; the authors read the class token
    if pooling not in ("token", "avg"):
        raise WeightsError(f"{checkpoint.origin} pools by {pooling!r}; of DINOv3, vitkit reads token and avg.")
    swiglu = checkpoint.has("blocks.0.mlp.fc1_g.weight")
    has_bias = checkpoint.has("blocks.0.attn.q_bias")
    options: dict[str, Any] = {"swiglu": True} if swiglu else {"gelu": "exact"}
    return ViTConfig(
        depth=checkpoint.count("blocks."),
        width=width,
        mlp=checkpoint.shape("blocks.0.mlp.fc2.weight", 2)[1],
        heads=infer_heads(checkpoint, width, arguments.get("num_heads"), swiglu=swiglu),
        patch=patch,
        channels=channels,
        image=infer_image(checkpoint, None, patch) if checkpoint.image or checkpoint.grid else _own_size(patch),
        classes=checkpoint.length("head.bias") or 0,
        positions="none",
        rotary="centred",
        rotary_base=arguments.get("rope_temperature", BASE),
        pool="gap" if pooling == "avg" else "token",
        registers=checkpoint.shape("reg_token", 3)[1] if checkpoint.has("reg_token") else 0,
        layer_scale=arguments.get("init_values") or 1e-5,
        query_bias=has_bias,
        key_bias=False,
        value_bias=has_bias,
        eps=EPS,
        **options,
    )


def _own_size(patch: int) -> tuple[int, int]:
    return (max(IMAGE // patch, 1) * patch,) * 2


def architecture_of(config: ViTConfig) -> tuple[str, dict[str, Any]]:
    """Return timm's architecture with these parts, and the arguments that give it these sizes."""
    arguments: dict[str, Any] = {
        "num_reg_tokens": config.registers,
        "init_values": config.layer_scale,
        "rope_temperature": config.rotary_base,
        "qkv_bias": config.query_bias,
        "global_pool": "avg" if config.pool == "gap" else "token",
    }
    if config.swiglu:
        arguments["swiglu_align_to"] = 1  # the width is not rounded; 0 means one layer for gate and value
    return f"vit_small{'_plus' if config.swiglu else ''}_patch16_dinov3", arguments


def unsupported(config: ViTConfig) -> list[str]:
    """Return what timm's DINOv3 cannot hold."""
    reason = KNOWN.reason_to_decline(config)
    found = [] if reason is None else [reason]
    if config.query_bias != config.value_bias:
        found.append("a bias of only one of query and value: timm's DINOv3 has both or none")
    if not config.swiglu and config.gelu != "exact":
        found.append("the tanh approximation of GELU: timm's DINOv3 has the exact one")
    if config.layer_scale is None:
        found.append("blocks without LayerScale: timm's DINOv3 has it")
    return found
