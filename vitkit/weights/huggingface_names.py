"""transformers' names for the tensors of its ViTs: three layouts of blocks, and one list of rules for all of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vitkit.model.config import ViTConfig
from vitkit.weights import mapping


@dataclass(frozen=True, kw_only=True)
class Names:
    """The names of one layout, without the prefix of a classifier's body."""

    patches: str = "embeddings.patch_embeddings.projection"
    blocks: str = "encoder.layer."
    attention_norm: str
    query: str = "attention.attention.query"
    key: str = "attention.attention.key"
    value: str = "attention.attention.value"
    out: str = "attention.output.dense"
    mlp_norm: str
    up: str
    down: str
    gate_up: tuple[str, ...] = ()  # of a SwiGLU: one layer with the gate first, or the gate's and the other
    gated_down: str = ""
    norm: str = "layernorm"


VIT = Names(attention_norm="layernorm_before", mlp_norm="layernorm_after", up="intermediate.dense", down="output.dense")
DINOV2 = Names(
    attention_norm="norm1",
    mlp_norm="norm2",
    up="mlp.fc1",
    down="mlp.fc2",
    gate_up=("mlp.weights_in",),
    gated_down="mlp.weights_out",
)
DINOV3 = Names(
    patches="embeddings.patch_embeddings",
    blocks="layer.",
    attention_norm="norm1",
    query="attention.q_proj",
    key="attention.k_proj",
    value="attention.v_proj",
    out="attention.o_proj",
    mlp_norm="norm2",
    up="mlp.up_proj",
    down="mlp.down_proj",
    gate_up=("mlp.gate_proj", "mlp.up_proj"),
    gated_down="mlp.down_proj",
    norm="norm",
)


def body_rules(config: ViTConfig, names: Names, root: str) -> Iterator[mapping.Rule]:
    """Yield the rules of all tensors but those of the head."""
    yield mapping.patch_convolution(
        "patches.project.weight", f"{root}{names.patches}.weight", config.channels, config.patch
    )
    yield from mapping.same_layer("patches.project", f"{root}{names.patches}", ["bias"])
    if config.class_token:
        yield mapping.batched("class_token", f"{root}embeddings.cls_token")
    if config.distillation != "none":
        yield mapping.batched("distillation_token", f"{root}embeddings.distillation_token")
    if config.registers:
        yield mapping.batched("register_tokens", f"{root}embeddings.register_tokens")
    if config.positions != "none":
        yield mapping.batched("encoder.positions.0.table", f"{root}embeddings.position_embeddings")
    for layer in range(config.depth):
        yield from _block_rules(config, names, f"encoder.blocks.{layer}", f"{root}{names.blocks}{layer}")
    yield from mapping.same_layer("encoder.norm", f"{root}{names.norm}")


def _block_rules(config: ViTConfig, names: Names, ours: str, theirs: str) -> Iterator[mapping.Rule]:
    projections = (
        (names.query, config.query_bias),
        (names.key, config.key_bias),
        (names.value, config.value_bias),
    )
    yield mapping.concatenated(
        f"{ours}.attention.qkv.weight", [f"{theirs}.{projection}.weight" for projection, _ in projections]
    )
    if biases := [f"{theirs}.{projection}.bias" for projection, has_bias in projections if has_bias]:
        yield mapping.concatenated(f"{ours}.attention.qkv.bias", biases)
    yield from mapping.same_layer(f"{ours}.attention.out", f"{theirs}.{names.out}")
    yield from mapping.same_layer(f"{ours}.attention_norm", f"{theirs}.{names.attention_norm}")
    yield from mapping.same_layer(f"{ours}.mlp_norm", f"{theirs}.{names.mlp_norm}")
    if config.layer_scale is not None:
        yield mapping.unchanged(f"{ours}.attention_scale.gamma", f"{theirs}.layer_scale1.lambda1")
        yield mapping.unchanged(f"{ours}.mlp_scale.gamma", f"{theirs}.layer_scale2.lambda1")
    if config.swiglu:
        for part in ("weight", "bias"):
            yield mapping.concatenated(
                f"{ours}.mlp.gate_up.{part}", [f"{theirs}.{layer}.{part}" for layer in names.gate_up]
            )
        yield from mapping.same_layer(f"{ours}.mlp.down", f"{theirs}.{names.gated_down}")
    else:
        yield from mapping.same_layer(f"{ours}.mlp.up", f"{theirs}.{names.up}")
        yield from mapping.same_layer(f"{ours}.mlp.down", f"{theirs}.{names.down}")


def zero_padded_native(native: str, foreign: str, width: int) -> mapping.Rule:
    """Return the rule of a layer that reads the first `width` of our features, and zeros for the others."""

    def to_native(weight: Tensor) -> Tensor:
        return torch.cat([weight, torch.zeros_like(weight)], dim=1)

    return mapping.Rule(native, (foreign,), to_native, lambda weight: (weight[:, :width],))


def zero_padded_foreign(native: str, foreign: str) -> mapping.Rule:
    """Return the rule of a layer that reads twice our features in the other library: zeros for the others there."""

    def to_foreign(weight: Tensor) -> tuple[Tensor, ...]:
        return (torch.cat([weight, torch.zeros_like(weight)], dim=1),)

    return mapping.Rule(native, (foreign,), lambda weight: weight[:, : weight.shape[1] // 2], to_foreign)
