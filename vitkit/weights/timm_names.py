"""timm's names for the tensors of its ViTs, hybrids and BiT ResNets."""

from collections.abc import Iterator

from vitkit.model.config import ResNetConfig, ViTConfig
from vitkit.model.conv_config import ConvConfig
from vitkit.weights import mapping, timm_dinov3


def vit_rules(config: ViTConfig) -> Iterator[mapping.Rule]:
    if timm_dinov3.is_dinov3(config):
        yield from timm_dinov3.rules(config)
        return
    if config.stem:
        yield from _stem_rules(config.stem)
    yield mapping.patch_convolution(
        "patches.project.weight", "patch_embed.proj.weight", config.embedded_channels, config.patch
    )
    if config.patch_bias:
        yield from mapping.same_layer("patches.project", "patch_embed.proj", ["bias"])
    if config.class_token:
        yield mapping.batched("class_token", "cls_token")
    if config.distillation != "none":
        yield mapping.batched("distillation_token", "dist_token")
    if config.registers:
        yield mapping.batched("register_tokens", "reg_token")
    if config.positions != "none":
        yield mapping.batched("encoder.positions.0.table", "pos_embed")
    if config.ln_pre:
        yield from mapping.same_layer("encoder.ln_pre", "norm_pre")
    for layer in range(config.depth):
        ours, theirs = f"encoder.blocks.{layer}", f"blocks.{layer}"
        yield from mapping.same_layer(f"{ours}.attention_norm", f"{theirs}.norm1")
        yield from mapping.same_layer(f"{ours}.attention.qkv", f"{theirs}.attn.qkv")
        yield from mapping.same_layer(f"{ours}.attention.out", f"{theirs}.attn.proj")
        yield from mapping.same_layer(f"{ours}.mlp_norm", f"{theirs}.norm2")
        yield from mapping.same_layer(f"{ours}.mlp.{'gate_up' if config.swiglu else 'up'}", f"{theirs}.mlp.fc1")
        yield from mapping.same_layer(f"{ours}.mlp.down", f"{theirs}.mlp.fc2")
        if config.layer_scale is not None:
            yield mapping.unchanged(f"{ours}.attention_scale.gamma", f"{theirs}.ls1.gamma")
            yield mapping.unchanged(f"{ours}.mlp_scale.gamma", f"{theirs}.ls2.gamma")
    if config.pool == "gap-norm":
        yield from mapping.same_layer("pool.norm", "fc_norm")
    else:
        yield from mapping.same_layer("encoder.norm", "norm")
    if config.pool == "attention":
        yield mapping.batched("pool.probe", "attn_pool.latent")
        for ours, theirs in (
            ("query", "q"),
            ("key_value", "kv"),
            ("out", "proj"),
            ("mlp_norm", "norm"),
            ("mlp.up", "mlp.fc1"),
            ("mlp.down", "mlp.fc2"),
        ):
            yield from mapping.same_layer(f"pool.{ours}", f"attn_pool.{theirs}")
    if config.projection:
        yield mapping.unchanged("projection.weight", "head.weight")
    if config.classes and config.distillation == "heads":
        yield from mapping.same_layer("head.logits.class_token", "head")
        yield from mapping.same_layer("head.logits.distillation_token", "head_dist")
    elif config.classes:
        yield from mapping.same_layer("head.logits", "head")


def resnet_rules(config: ResNetConfig) -> Iterator[mapping.Rule]:
    yield from mapping.same_layer("body.root", "stem.conv", ["weight"])
    yield from _unit_rules("body", "", config.body)
    yield from mapping.same_layer("body.norm", "norm")
    if config.classes:
        yield mapping.Rule(
            "head.logits.weight",
            ("head.fc.weight",),
            lambda kernel: kernel.flatten(1),
            lambda weight: (weight[:, :, None, None],),
        )  # timm's head is a 1x1 convolution
        yield from mapping.same_layer("head.logits", "head.fc", ["bias"])


def _stem_rules(stem: ConvConfig) -> Iterator[mapping.Rule]:
    # Without stages, timm's stem is a bare Sequential, one level up.
    root = "patch_embed.backbone" + (".stem" if stem.layers else "")
    yield from mapping.same_layer("stem.root", f"{root}.conv", ["weight"])
    yield from mapping.same_layer("stem.root_norm", f"{root}.norm")
    yield from _unit_rules("stem", "patch_embed.backbone.", stem)


def _unit_rules(ours: str, theirs: str, conv: ConvConfig) -> Iterator[mapping.Rule]:
    for stage, units in enumerate(conv.layers):
        for unit in range(units):
            native, foreign = f"{ours}.stages.{stage}.{unit}", f"{theirs}stages.{stage}.blocks.{unit}"
            for number in (1, 2, 3):
                yield from mapping.same_layer(f"{native}.conv{number}", f"{foreign}.conv{number}", ["weight"])
                yield from mapping.same_layer(f"{native}.norm{number}", f"{foreign}.norm{number}")
            if unit == 0:
                yield from mapping.same_layer(f"{native}.project", f"{foreign}.downsample.conv", ["weight"])
                if not conv.preactivation:
                    yield from mapping.same_layer(f"{native}.project_norm", f"{foreign}.downsample.norm")
