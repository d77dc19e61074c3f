"""Google's .npz format: vision_transformer (ViT and hybrids, both naming schemes) and big_transfer (BiT ResNets).

Flax stores dense kernels as (in, out), convolutions as HWIO and attention per head; torch transposes all of them.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from vitkit.data.preprocessing import Preprocessing
from vitkit.errors import WeightsError
from vitkit.model.allow_list import allow
from vitkit.model.base import Metadata
from vitkit.model.build import Model
from vitkit.model.config import ModelConfig, ResNetConfig, ViTConfig
from vitkit.model.conv_config import ConvConfig
from vitkit.weights import formats
from vitkit.weights.infer_sizes import infer_image
from vitkit.weights.mapping import Rule, batched, to_foreign_tensors, to_native_state, unchanged

# Names of attention, second LayerNorm and MLP in an encoder block. The published files have the names from before
# flax.linen, which Google's code and timm read; they are written unless the weights came from a file with newer names.
NAMING = {
    "published": ("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3"),
    "linen": ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0"),
}


PREFIXES = ("", "params/", "opt/target/")  # of bare weights, and of newer and older training states
FIRST_KERNELS = ("embedding/kernel", "resnet/root_block/standardized_conv2d/kernel")

# Google's code evaluates whole images, resized to a square: `tf.image.resize(im, [crop_size, crop_size])` in
# vision_transformer's vit_jax/input_pipeline.py, and the same in big_transfer's bit_jax. TensorFlow does not antialias
# there; vitkit does, as transformers' copies of these weights do.
PREPROCESSING = Preprocessing(
    resize="squash", interpolation="bilinear", origin="as Google evaluates its weights, the file does not say"
)

# The options that `conversion_losses` judges.
KNOWN = allow(
    "the google format",
    vit="depth width mlp heads patch stem image channels classes positions inject pool class_token representation "
    "norm axial gelu eps dropout stochastic_depth",
    plain="patch_bias class_position distillation registers projection normalise ln_pre query_bias key_bias "
    "value_bias swiglu layer_scale rotary rotary_base rotary_layout content induced seeds",
    only={"attention": (None,), "gelu": ("tanh", "exact")},
    resnet="body image channels classes",
    conv="layers width preactivation standardise_eps standardise_on norm_eps attention",
)


def recognises(names: Collection[str]) -> bool:
    return _prefix(names) is not None


def _prefix(names: Collection[str]) -> str | None:
    return next((prefix for prefix in PREFIXES for name in FIRST_KERNELS if prefix + name in names), None)


def load(checkpoint: formats.Checkpoint) -> formats.LoadedWeights:
    prefix = _prefix(checkpoint.tensors.keys()) or ""
    tensors = {
        name.removeprefix(prefix): _squeeze_group_norm(name, tensor)
        for name, tensor in checkpoint.tensors.items()
        if name.startswith(prefix)
    }
    checkpoint = replace(checkpoint, tensors=tensors)
    provenance = {"format": "google"}
    config: ModelConfig
    if checkpoint.has("embedding/kernel"):
        naming = _naming(checkpoint)
        config = _infer_vit(checkpoint, naming)
        provenance["naming"] = naming
        rules = list(vit_rules(config, naming))
    else:
        config = _infer_resnet(checkpoint)
        rules = list(resnet_rules(config))
    state = to_native_state(tensors, rules, config, checkpoint.origin)
    return formats.LoadedWeights(
        config=config, state=state, metadata=Metadata(preprocessing=PREPROCESSING, provenance=provenance)
    )


def tensors_of(model: Model) -> dict[str, Tensor]:
    if isinstance(model.config, ResNetConfig):
        return to_foreign_tensors(model, resnet_rules(model.config))
    assert isinstance(model.config, ViTConfig)
    naming = model.metadata.provenance.get("naming", "published")
    return to_foreign_tensors(model, vit_rules(model.config, naming))


def conversion_losses(model: Model) -> formats.ConversionLosses:
    config = model.config
    unsupported = formats.unknown_options(KNOWN, config)
    changed: list[str] = []
    dropped: list[str] = []
    if isinstance(config, ViTConfig):
        if config.positions != "1d" or config.inject != "stem":
            unsupported.append(
                f"positions={config.positions!r} injected at {config.inject!r}: an npz has one 1-D table, at the stem"
            )
        if config.norm == "post" or config.axial:
            unsupported.append("post-norm or axial blocks")
        if config.pool not in ("token", "gap") or (config.pool == "gap" and config.class_token):
            unsupported.append(
                f"pool={config.pool!r}"
                + (" with a class token" if config.class_token else "")
                + ": only token, and gap without a class token, exist"
            )
        if config.gelu != "tanh":
            changed.append("GELU: exact in the model, always the tanh approximation in the format")
        (changed if abs(config.eps - 1e-6) > formats.NEGLIGIBLE_EPS else dropped).extend(
            formats.epsilon_difference(config.eps, 1e-6)
        )
        rows, columns = config.grid
        if rows != columns:
            square = math.isqrt(config.patches) ** 2 == config.patches
            (changed if square else dropped).append(
                f"the grid: read it back with grid=({rows}, {columns})"
                + (", or it is taken for a square" if square else "")
            )
        if config.stem and config.stem.preactivation:
            unsupported.append("a pre-activation stem")
        elif config.stem and config.stem != ConvConfig(layers=config.stem.layers, width=config.stem.width):
            dropped.append("the stem's epsilons: Google's differ")
    elif isinstance(config, ResNetConfig) and config.body != ConvConfig.bit(config.body.layers, config.body.width):
        dropped.append("the ResNet's epsilons: Google's differ")
    if model.metadata.labels:
        dropped.append("class names: an npz cannot hold them")
    if model.metadata.preprocessing != PREPROCESSING:
        dropped.append("preprocessing: an npz cannot hold it, and is read with Google's")
    return formats.ConversionLosses(
        unsupported=unsupported, changed=changed, dropped=dropped + formats.training_settings(config)
    )


def vit_rules(config: ViTConfig, naming: str) -> Iterator[Rule]:
    attention, mlp_norm, mlp = NAMING[naming]
    if config.stem:
        yield from _stem_rules(config.stem)
    yield _patch_kernel(config)
    yield unchanged("patches.project.bias", "embedding/bias")
    if config.class_token:
        yield batched("class_token", "cls")
    yield batched("encoder.positions.0.table", "Transformer/posembed_input/pos_embedding")
    for layer in range(config.depth):
        ours, theirs = f"encoder.blocks.{layer}", f"Transformer/encoderblock_{layer}"
        yield from _norm(f"{ours}.attention_norm", f"{theirs}/LayerNorm_0")
        yield from _attention(f"{ours}.attention", f"{theirs}/{attention}", config.heads)
        yield from _norm(f"{ours}.mlp_norm", f"{theirs}/{mlp_norm}")
        yield from _dense(f"{ours}.mlp.up", f"{theirs}/{mlp}/Dense_0")
        yield from _dense(f"{ours}.mlp.down", f"{theirs}/{mlp}/Dense_1")
    yield from _norm("encoder.norm", "Transformer/encoder_norm")
    if config.representation:
        yield from _dense("head.representation", "pre_logits")
    if config.classes:
        yield from _dense("head.logits", "head")


def resnet_rules(config: ResNetConfig) -> Iterator[Rule]:
    root = "resnet"
    yield _kernel("body.root.weight", f"{root}/root_block/standardized_conv2d/kernel")
    for stage, units in enumerate(config.body.layers):
        for unit in range(units):
            ours, theirs = f"body.stages.{stage}.{unit}", f"{root}/block{stage + 1}/unit{unit + 1:02d}"
            for number, letter in enumerate("abc", start=1):
                yield _kernel(f"{ours}.conv{number}.weight", f"{theirs}/{letter}/standardized_conv2d/kernel")
                yield unchanged(f"{ours}.norm{number}.weight", f"{theirs}/{letter}/group_norm/gamma")
                yield unchanged(f"{ours}.norm{number}.bias", f"{theirs}/{letter}/group_norm/beta")
            if unit == 0:
                yield _kernel(f"{ours}.project.weight", f"{theirs}/a/proj/standardized_conv2d/kernel")
    yield unchanged("body.norm.weight", f"{root}/group_norm/gamma")
    yield unchanged("body.norm.bias", f"{root}/group_norm/beta")
    if config.classes:
        yield Rule(
            "head.logits.weight",
            (f"{root}/head/conv2d/kernel",),
            lambda kernel: kernel.flatten(0, 2).T,
            lambda weight: (weight.T[None, None],),
        )
        yield unchanged("head.logits.bias", f"{root}/head/conv2d/bias")


def _stem_rules(stem: ConvConfig) -> Iterator[Rule]:
    yield _kernel("stem.root.weight", "conv_root/kernel")
    yield from _norm("stem.root_norm", "gn_root")
    for stage, units in enumerate(stem.layers):
        for unit in range(units):
            ours, theirs = f"stem.stages.{stage}.{unit}", f"block{stage + 1}/unit{unit + 1}"
            for number in (1, 2, 3):
                yield _kernel(f"{ours}.conv{number}.weight", f"{theirs}/conv{number}/kernel")
                yield from _norm(f"{ours}.norm{number}", f"{theirs}/gn{number}")
            if unit == 0:
                yield _kernel(f"{ours}.project.weight", f"{theirs}/conv_proj/kernel")
                yield from _norm(f"{ours}.project_norm", f"{theirs}/gn_proj")


def _attention(ours: str, theirs: str, heads: int) -> Iterator[Rule]:
    projections = ("query", "key", "value")

    def split_kernel(weight: Tensor) -> tuple[Tensor, ...]:
        return tuple(kernel.T.unflatten(1, (heads, -1)) for kernel in weight.chunk(3))  # (D, H, d) each

    def join_kernels(*kernels: Tensor) -> Tensor:
        return torch.cat([kernel.flatten(1).T for kernel in kernels])  # (3·D, D)

    yield Rule(
        f"{ours}.qkv.weight", tuple(f"{theirs}/{name}/kernel" for name in projections), join_kernels, split_kernel
    )
    yield Rule(
        f"{ours}.qkv.bias",
        tuple(f"{theirs}/{name}/bias" for name in projections),
        lambda *biases: torch.cat([bias.flatten() for bias in biases]),
        lambda bias: tuple(vector.unflatten(0, (heads, -1)) for vector in bias.chunk(3)),
    )
    yield Rule(
        f"{ours}.out.weight",
        (f"{theirs}/out/kernel",),
        lambda kernel: kernel.flatten(0, 1).T,
        lambda weight: (weight.T.unflatten(0, (heads, -1)),),
    )
    yield unchanged(f"{ours}.out.bias", f"{theirs}/out/bias")


def _dense(ours: str, theirs: str) -> Iterator[Rule]:
    yield Rule(f"{ours}.weight", (f"{theirs}/kernel",), lambda kernel: kernel.T, lambda weight: (weight.T,))
    yield unchanged(f"{ours}.bias", f"{theirs}/bias")


def _norm(ours: str, theirs: str) -> Iterator[Rule]:
    yield unchanged(f"{ours}.weight", f"{theirs}/scale")
    yield unchanged(f"{ours}.bias", f"{theirs}/bias")


def _kernel(ours: str, theirs: str) -> Rule:
    """Return the rule of a convolution, OIHW here and HWIO in Flax."""
    return Rule(
        ours, (theirs,), lambda kernel: kernel.permute(3, 2, 0, 1), lambda weight: (weight.permute(2, 3, 1, 0),)
    )


def _patch_kernel(config: ViTConfig) -> Rule:
    shape = (config.embedded_channels, config.patch, config.patch)
    return Rule(
        "patches.project.weight",
        ("embedding/kernel",),
        lambda kernel: kernel.permute(3, 2, 0, 1).flatten(1),
        lambda weight: (weight.unflatten(1, shape).permute(2, 3, 1, 0),),
    )


def _naming(checkpoint: formats.Checkpoint) -> str:
    for naming, (attention, *_) in NAMING.items():
        if checkpoint.has(f"Transformer/encoderblock_0/{attention}/query/kernel"):
            return naming
    raise WeightsError(
        f"{checkpoint.origin} has a patch embedding but no encoder block of Google's ViT code.",
        looked_for=[f"Transformer/encoderblock_0/{names[0]}/query/kernel" for names in NAMING.values()],
    )


def _infer_vit(checkpoint: formats.Checkpoint, naming: str) -> ViTConfig:
    attention, _, mlp = NAMING[naming]
    block = "Transformer/encoderblock_0"
    patch, _, channels, width = checkpoint.shape("embedding/kernel", 4)
    _, heads, _ = checkpoint.shape(f"{block}/{attention}/query/kernel", 3)
    if checkpoint.heads not in (None, heads):
        raise WeightsError(
            f"{checkpoint.origin} has {heads} heads according to its tensors' shapes, not {checkpoint.heads}."
        )
    stem = _infer_stem(checkpoint)
    class_token = checkpoint.has("cls")
    patches = checkpoint.shape("Transformer/posembed_input/pos_embedding", 3)[1] - class_token
    return ViTConfig(
        depth=checkpoint.count("Transformer/encoderblock_"),
        width=width,
        heads=heads,
        patch=patch,
        stem=stem,
        mlp=checkpoint.shape(f"{block}/{mlp}/Dense_0/kernel", 2)[1],
        image=infer_image(checkpoint, patches, patch * (stem.stride if stem else 1)),
        channels=checkpoint.shape("conv_root/kernel", 4)[2] if stem else channels,
        classes=checkpoint.length("head/bias") or 0,
        representation=checkpoint.length("pre_logits/bias"),
        pool="token" if class_token else "gap",
        class_token=class_token,
        gelu="tanh",
        eps=1e-6,
    )


def _infer_stem(checkpoint: formats.Checkpoint) -> ConvConfig | None:
    if not (checkpoint.has("conv_root/kernel") or checkpoint.has("gn_root/scale")):
        return None
    return ConvConfig(
        layers=_units(checkpoint.tensors, r"block(\d+)/unit(\d+)/"), width=checkpoint.shape("conv_root/kernel", 4)[3]
    )


def _infer_resnet(checkpoint: formats.Checkpoint) -> ResNetConfig:
    *_, channels, width = checkpoint.shape("resnet/root_block/standardized_conv2d/kernel", 4)
    body = ConvConfig.bit(_units(checkpoint.tensors, r"resnet/block(\d+)/unit(\d+)/"), width)
    return ResNetConfig(
        body=body,
        channels=channels,
        classes=checkpoint.length("resnet/head/conv2d/bias") or 0,
        image=checkpoint.image or (224, 224),
    )


def _units(tensors: Mapping[str, Tensor], pattern: str) -> tuple[int, ...]:
    """Return the number of units in each stage; the names count both from 1."""
    units: dict[int, int] = {}
    for name in tensors:
        if match := re.match(pattern, name):
            stage, unit = int(match[1]), int(match[2])
            units[stage] = max(units.get(stage, 0), unit)
    return tuple(units[stage] for stage in sorted(units))


def _squeeze_group_norm(name: str, tensor: Tensor) -> Tensor:
    """Flatten the group-norm parameters, which flax before 0.3.6 wrote as (1, 1, 1, C) (google/flax issue 1721)."""
    if re.search(r"(gn(\d+|_root|_proj)/(bias|scale)|group_norm/(gamma|beta))$", name):
        return tensor.flatten()
    return tensor
