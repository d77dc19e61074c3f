"""The image tower of transformers' CLIP: CLIPVisionModel, CLIPVisionModelWithProjection, and whole CLIPModel folders.

MetaCLIP, MetaCLIP 2 and converted OpenCLIP and DFN weights have the same tensors; config.json names the activation,
quick-GELU unless it says otherwise.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, TypedDict

from torch import Tensor

from vitkit.errors import WeightsError
from vitkit.model.allow_list import allow
from vitkit.model.base import Metadata, Provenance
from vitkit.model.build import Model
from vitkit.model.config import ModelConfig, ViTConfig, parse_size
from vitkit.model.options import Gelu
from vitkit.stored_json import conform
from vitkit.weights import mapping
from vitkit.weights.formats import Checkpoint, ConversionLosses, LoadedWeights, training_settings, unknown_options
from vitkit.weights.huggingface_preprocessing import preprocessor_of
from vitkit.weights.infer_sizes import infer_gelu, infer_heads, infer_image
from vitkit.weights.two_towers import (
    SCALE,
    announce_unused_pixels,
    block_rules,
    default_preprocessing,
    provenance_of,
    root_of,
    separate_towers,
)

__all__ = ["config_of", "conversion_losses", "holds", "load", "preprocessor_of", "recognises", "tensors_of"]

GELU: dict[str, Gelu] = {
    "quick_gelu": "quick",
    "gelu": "exact",
    "gelu_python": "exact",
    "gelu_new": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_fast": "tanh",
}
_TYPES = ("clip", "clip_vision_model", "metaclip_2", "metaclip_2_vision_model")
_TEXT = r"text_model\..*|text_projection\.weight"
_BUFFERS = r"(vision_model\.)?embeddings\.position_ids"  # 0, 1, 2, …, which older versions stored

# The options that `conversion_losses` judges and `config_of` writes.
KNOWN = allow(
    "the hf format of CLIP",
    vit="depth width mlp heads patch image channels classes projection ln_pre patch_bias gelu eps dropout "
    "stochastic_depth",
    plain="stem positions inject pool class_token class_position distillation registers representation normalise "
    "norm axial query_bias key_bias value_bias swiglu layer_scale rotary rotary_base rotary_layout content induced "
    "seeds",
    only={"classes": (0,), "ln_pre": (True,), "patch_bias": (False,)},
)


class TowerSettings(TypedDict, total=False):
    """The part of config.json that is read, of a tower or of its table vision_config."""

    hidden_act: str
    image_size: int | tuple[int, int] | None
    num_attention_heads: int
    layer_norm_eps: float


class _ClipSettings(TowerSettings, total=False):
    model_type: str
    architectures: list[str] | None
    vision_config: TowerSettings | None
    vitkit: Provenance


def recognises(names: Collection[str]) -> bool:
    root = root_of(names)
    towers = (f"{root}embeddings.class_embedding", f"{root}pre_layrnorm.weight")  # transformers' own spelling
    return f"{root}embeddings.patch_embedding.weight" in names and any(name in names for name in towers)


def load(checkpoint: Checkpoint) -> LoadedWeights:
    settings = conform(checkpoint.config, _ClipSettings, f"config.json of {checkpoint.origin}", error=WeightsError)
    kind = settings.get("model_type", "clip")
    if kind not in _TYPES:
        raise WeightsError(
            f"{checkpoint.origin} is a model of the type {kind}; of transformers' CLIP models, vitkit reads these.",
            known=", ".join(_TYPES),
        )
    two_towers = checkpoint.has(SCALE)
    checkpoint, logits = separate_towers(checkpoint, _TEXT, _BUFFERS)
    config = _infer(checkpoint, settings, projected=two_towers or _names_a_projection(settings))
    return LoadedWeights(
        config=config,
        state=mapping.to_native_state(
            checkpoint.tensors, rules(config, root_of(checkpoint.tensors)), config, checkpoint.origin
        ),
        metadata=Metadata(
            preprocessing=default_preprocessing(checkpoint.preprocessor, "CLIP", config.image, config.channels),
            provenance=provenance_of(settings.get("vitkit"), "hf", logits),
            interpolation="bicubic-no-antialias",  # as transformers resizes its positions
        ),
    )


def holds(config: ModelConfig) -> bool:
    """Return whether transformers' CLIP is the model that a config resembles; `conversion_losses` judges the rest."""
    return isinstance(config, ViTConfig) and config.ln_pre


def tensors_of(model: Model) -> dict[str, Tensor]:
    assert isinstance(model.config, ViTConfig)
    return mapping.to_foreign_tensors(model, rules(model.config, "vision_model."))


def config_of(model: Model) -> dict[str, Any]:
    config = model.config
    assert isinstance(config, ViTConfig)
    return {
        "architectures": ["CLIPVisionModelWithProjection" if config.projection else "CLIPVisionModel"],
        "model_type": "clip_vision_model",
        **tower_settings(config),
        "projection_dim": config.projection or config.width,
        "dtype": "float32",
        "vitkit": dict(model.metadata.provenance),
    }


def tower_settings(config: ViTConfig) -> dict[str, Any]:
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp,
        "hidden_act": {"quick": "quick_gelu", "exact": "gelu", "tanh": "gelu_pytorch_tanh"}[config.gelu],
        "layer_norm_eps": config.eps,
        "attention_dropout": 0.0,
        "image_size": config.image[0],
        "patch_size": config.patch,
        "num_channels": config.channels,
    }


def conversion_losses(model: Model) -> ConversionLosses:
    return tower_losses(model, unknown_options(KNOWN, model.config))


def tower_losses(model: Model, unsupported: list[str]) -> ConversionLosses:
    dropped = training_settings(model.config)
    if model.config.image[0] != model.config.image[1]:
        unsupported.append(f"images of {model.config.image[0]} x {model.config.image[1]}: these models take squares")
    if model.metadata.preprocessing.resize == "letterbox":
        dropped.append("letterbox preprocessing: written as a crop")
    return ConversionLosses(unsupported=unsupported, dropped=dropped)


def rules(config: ViTConfig, root: str) -> Iterator[mapping.Rule]:
    yield mapping.patch_convolution(
        "patches.project.weight", f"{root}embeddings.patch_embedding.weight", config.channels, config.patch
    )
    yield mapping.Rule(
        "class_token",
        (f"{root}embeddings.class_embedding",),
        lambda vector: vector[None],
        lambda token: (token[0],),
    )
    yield mapping.unchanged("encoder.positions.0.table", f"{root}embeddings.position_embedding.weight")
    yield from mapping.same_layer("encoder.ln_pre", f"{root}pre_layrnorm")
    yield from block_rules(config.depth, root)
    yield from mapping.same_layer("encoder.norm", f"{root}post_layernorm")
    if config.projection:
        yield mapping.unchanged("projection.weight", "visual_projection.weight")


def _names_a_projection(settings: _ClipSettings) -> bool:
    return any(name.endswith(("CLIPModel", "WithProjection")) for name in settings.get("architectures") or ())


def _infer(checkpoint: Checkpoint, settings: _ClipSettings, *, projected: bool) -> ViTConfig:
    root = root_of(checkpoint.tensors)
    tower: dict[str, Any] = {**settings, **(settings.get("vision_config") or {})}
    positions = checkpoint.shape(f"{root}embeddings.position_embedding.weight", 2)[0]
    sizes = infer_tower(checkpoint, tower, root, positions - 1, default="quick_gelu")
    has_projection = projected or checkpoint.has("visual_projection.weight")
    return ViTConfig(
        **sizes,
        classes=0,
        patch_bias=False,
        ln_pre=True,
        projection=checkpoint.shape("visual_projection.weight", 2)[0] if has_projection else None,
        eps=tower.get("layer_norm_eps", 1e-5),
    )


def infer_tower(
    checkpoint: Checkpoint, tower: dict[str, Any], root: str, patches: int, *, default: str
) -> dict[str, Any]:
    """Return the sizes and the GELU that CLIP and SigLIP towers have in the same places, as arguments of ViTConfig."""
    width, channels, patch, patch_width = checkpoint.shape(f"{root}embeddings.patch_embedding.weight", 4)
    if patch != patch_width:
        raise WeightsError(f"{checkpoint.origin} has {patch} x {patch_width} patches; vitkit's patches are square.")
    # a file alone: CLIP towers exist with several kinds of GELU
    activation = tower.get("hidden_act", default if checkpoint.config else None)
    if activation is not None and activation not in GELU:
        raise WeightsError(
            f"{checkpoint.origin} uses the activation {activation!r}; vitkit's MLP uses GELU.", known=", ".join(GELU)
        )
    if (size := tower.get("image_size")) is not None:
        checkpoint = replace(checkpoint, image=parse_size(size))
    image = infer_image(checkpoint, patches, patch)
    announce_unused_pixels(checkpoint, image)
    heads = tower.get("num_attention_heads", 12 if checkpoint.config else None)  # transformers' default
    return {
        "depth": checkpoint.count(f"{root}encoder.layers."),
        "width": width,
        "mlp": checkpoint.shape(f"{root}encoder.layers.0.mlp.fc1.weight", 2)[0],
        "heads": infer_heads(checkpoint, width, heads),
        "patch": patch,
        "image": image,
        "channels": channels,
        "gelu": infer_gelu(checkpoint, None if activation is None else GELU[activation]),
    }
