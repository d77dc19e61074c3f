"""The image tower of transformers' SigLIP and fixed-size SigLIP 2: SiglipVisionModel, and whole SiglipModel folders."""

from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor

from vitkit.errors import WeightsError
from vitkit.model.allow_list import allow
from vitkit.model.base import Metadata, Provenance
from vitkit.model.build import Model
from vitkit.model.config import ModelConfig, ViTConfig
from vitkit.stored_json import conform
from vitkit.weights import clip, mapping
from vitkit.weights.formats import Checkpoint, ConversionLosses, LoadedWeights, unknown_options
from vitkit.weights.huggingface_preprocessing import preprocessor_of
from vitkit.weights.two_towers import block_rules, default_preprocessing, provenance_of, root_of, separate_towers

__all__ = ["config_of", "conversion_losses", "holds", "load", "preprocessor_of", "recognises", "tensors_of"]

_TYPES = ("siglip", "siglip_vision_model")
_TEXT = r"text_model\..*"
_BUFFERS = r"(vision_model\.)?embeddings\.position_ids"

# The options that `conversion_losses` judges and `config_of` writes.
KNOWN = allow(
    "the hf format of SigLIP",
    vit="depth width mlp heads patch image channels classes pool class_token gelu eps dropout stochastic_depth",
    plain="stem positions inject class_position distillation registers representation projection normalise ln_pre "
    "patch_bias norm axial query_bias key_bias value_bias swiglu layer_scale rotary rotary_base rotary_layout content "
    "induced seeds",
    only={"classes": (0,), "pool": ("attention",), "class_token": (False,)},
)


class _SiglipSettings(clip.TowerSettings, total=False):
    model_type: str
    vision_config: clip.TowerSettings | None
    vitkit: Provenance


def recognises(names: Collection[str]) -> bool:
    return f"{root_of(names)}embeddings.patch_embedding.weight" in names and not clip.recognises(names)


def load(checkpoint: Checkpoint) -> LoadedWeights:
    settings = conform(checkpoint.config, _SiglipSettings, f"config.json of {checkpoint.origin}", error=WeightsError)
    kind = settings.get("model_type", "siglip")
    if kind.startswith("siglip2"):
        raise WeightsError(
            f"{checkpoint.origin} is a NaFlex SigLIP 2, of the type {kind}: its images keep their shape, and vitkit's "
            "models have one image size.",
            try_="the fixed-size checkpoint, without naflex in its name",
        )
    if kind not in _TYPES:
        raise WeightsError(
            f"{checkpoint.origin} is a model of the type {kind}; of transformers' models with such tensors, vitkit "
            "reads these.",
            known=", ".join(_TYPES),
        )
    checkpoint, logits = separate_towers(checkpoint, _TEXT, _BUFFERS)
    config = _infer(checkpoint, settings)
    return LoadedWeights(
        config=config,
        state=mapping.to_native_state(
            checkpoint.tensors, rules(config, root_of(checkpoint.tensors)), config, checkpoint.origin
        ),
        metadata=Metadata(
            preprocessing=default_preprocessing(checkpoint.preprocessor, "Siglip", config.image, config.channels),
            provenance=provenance_of(settings.get("vitkit"), "hf", logits),
            interpolation="bicubic-no-antialias",  # as transformers resizes its positions
        ),
    )


def holds(config: ModelConfig) -> bool:
    """Return whether transformers' SigLIP is the model that a config resembles; `conversion_losses` judges the rest."""
    return isinstance(config, ViTConfig) and config.pool == "attention"


def tensors_of(model: Model) -> dict[str, Tensor]:
    assert isinstance(model.config, ViTConfig)
    return mapping.to_foreign_tensors(model, rules(model.config, "vision_model."))


def config_of(model: Model) -> dict[str, Any]:
    config = model.config
    assert isinstance(config, ViTConfig)
    return {
        "architectures": ["SiglipVisionModel"],
        "model_type": "siglip_vision_model",
        **clip.tower_settings(config),
        "dtype": "float32",
        "vitkit": dict(model.metadata.provenance),
    }


def conversion_losses(model: Model) -> ConversionLosses:
    return clip.tower_losses(model, unknown_options(KNOWN, model.config))


def rules(config: ViTConfig, root: str) -> Iterator[mapping.Rule]:
    yield mapping.patch_convolution(
        "patches.project.weight", f"{root}embeddings.patch_embedding.weight", config.channels, config.patch
    )
    yield from mapping.same_layer("patches.project", f"{root}embeddings.patch_embedding", ["bias"])
    yield mapping.unchanged("encoder.positions.0.table", f"{root}embeddings.position_embedding.weight")
    yield from block_rules(config.depth, root)
    yield from mapping.same_layer("encoder.norm", f"{root}post_layernorm")
    yield mapping.batched("pool.probe", f"{root}head.probe")
    for name in ("weight", "bias"):  # torch's MultiheadAttention joins query, key and value
        yield mapping.split(
            [f"pool.query.{name}", f"pool.key_value.{name}"], f"{root}head.attention.in_proj_{name}", [1, 2]
        )
    yield from mapping.same_layer("pool.out", f"{root}head.attention.out_proj")
    yield from mapping.same_layer("pool.mlp_norm", f"{root}head.layernorm")
    yield from mapping.same_layer("pool.mlp.up", f"{root}head.mlp.fc1")
    yield from mapping.same_layer("pool.mlp.down", f"{root}head.mlp.fc2")


def _infer(checkpoint: Checkpoint, settings: _SiglipSettings) -> ViTConfig:
    root = root_of(checkpoint.tensors)
    tower: dict[str, Any] = {"hidden_act": "gelu_pytorch_tanh", **settings, **(settings.get("vision_config") or {})}
    positions = checkpoint.shape(f"{root}embeddings.position_embedding.weight", 2)[0]
    return ViTConfig(
        **clip.infer_tower(checkpoint, tower, root, positions, default="gelu_pytorch_tanh"),
        classes=0,
        pool="attention",
        class_token=False,
        eps=tower.get("layer_norm_eps", 1e-6),
    )
