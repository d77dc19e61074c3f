"""The ViT of Hugging Face transformers: a folder of config.json, preprocessor_config.json and model.safetensors.

ViTForImageClassification keeps its encoder under "vit."; a bare ViTModel does not, and may have a tanh pooler, which is
the paper's pre-training layer without the logits.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, TypedDict

from torch import Tensor

from vitkit.data.geometry import resize_target
from vitkit.errors import WeightsError
from vitkit.model.allow_list import allow
from vitkit.model.base import Metadata, Provenance
from vitkit.model.build import Model
from vitkit.model.config import ResNetConfig, ViTConfig, parse_size
from vitkit.model.options import Gelu
from vitkit.stored_json import conform
from vitkit.weights import mapping
from vitkit.weights.formats import Checkpoint, ConversionLosses, LoadedWeights, training_settings, unknown_options
from vitkit.weights.huggingface_preprocessing import RESAMPLE, preprocessing_of
from vitkit.weights.infer_sizes import infer_heads, infer_image

_GELU: dict[str, Gelu] = {
    "gelu": "exact",
    "gelu_python": "exact",
    "gelu_new": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_fast": "tanh",
}

# The options that `conversion_losses` judges and `config_of` writes.
KNOWN = allow(
    "the hf format",
    vit="depth width mlp heads patch stem image channels classes positions inject pool class_token representation "
    "norm axial gelu eps dropout stochastic_depth",
    plain="patch_bias class_position distillation registers projection normalise ln_pre query_bias key_bias "
    "value_bias swiglu layer_scale rotary rotary_base rotary_layout",
    only={"gelu": ("tanh", "exact"), "pool": ("token", "gap", "gap-norm", "attention")},
    conv="layers width preactivation standardise_eps standardise_on norm_eps",
)


class _TransformersConfig(TypedDict, total=False):
    """The part of config.json that is read."""

    model_type: str
    hidden_act: str
    image_size: int | tuple[int, int] | None
    num_attention_heads: int | None
    layer_norm_eps: float
    id2label: dict[str, str] | None
    vitkit: Provenance


def recognises(names: Collection[str]) -> bool:
    return any(f"{prefix}embeddings.patch_embeddings.projection.weight" in names for prefix in ("vit.", ""))


def load(checkpoint: Checkpoint) -> LoadedWeights:
    settings = conform(
        checkpoint.config, _TransformersConfig, f"config.json of {checkpoint.origin}", error=WeightsError
    )
    checkpoint = replace(checkpoint, config=settings)
    kind = settings.get("model_type", "vit")
    if kind != "vit":
        raise WeightsError(
            f"{checkpoint.origin} is a model of the type {kind}; of transformers' models, vitkit reads vit."
        )
    checkpoint = replace(checkpoint, tensors=_fix(checkpoint.tensors))
    config = _infer(checkpoint)
    metadata = Metadata(
        labels=_labels(checkpoint, config.classes),
        preprocessing=preprocessing_of(checkpoint.preprocessor, config.channels),
        provenance=checkpoint.config.get("vitkit", {"format": "hf"}),
    )
    state = mapping.to_native_state(checkpoint.tensors, rules(config), config, checkpoint.origin)
    return LoadedWeights(config=config, state=state, metadata=metadata)


def tensors_of(model: Model) -> dict[str, Tensor]:
    assert isinstance(model.config, ViTConfig)
    return mapping.to_foreign_tensors(model, rules(model.config))


def config_of(model: Model) -> dict[str, Any]:
    config = model.config
    assert isinstance(config, ViTConfig)
    labels = model.metadata.labels or [f"LABEL_{index}" for index in range(config.classes)]
    record = {
        "architectures": ["ViTForImageClassification" if config.classes else "ViTModel"],
        "model_type": "vit",
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp,
        "hidden_act": "gelu_pytorch_tanh" if config.gelu == "tanh" else "gelu",
        "layer_norm_eps": config.eps,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "qkv_bias": True,
        "image_size": config.image[0] if config.image[0] == config.image[1] else list(config.image),
        "patch_size": config.patch,
        "num_channels": config.channels,
        "pooler_act": "tanh",
        "pooler_output_size": config.representation or config.width,
        "dtype": "float32",
        "vitkit": dict(model.metadata.provenance),
    }
    if config.classes:
        record["id2label"] = {str(index): label for index, label in enumerate(labels)}
        record["label2id"] = {label: index for index, label in enumerate(labels)}
    return record


def preprocessor_of(model: Model) -> dict[str, Any]:
    preprocessing, (height, width) = model.metadata.preprocessing, model.config.image
    record: dict[str, Any] = {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "rescale_factor": 1 / 255,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
        "resample": {name: number for number, name in RESAMPLE.items()}[preprocessing.interpolation],
        "vitkit": asdict(preprocessing),
    }
    target = resize_target(model.config.image, preprocessing)
    crop_size = {"height": height, "width": width}
    if preprocessing.resize == "squash":
        record |= {"image_processor_type": "ViTImageProcessor", "size": {"height": target[0], "width": target[1]}}
        if target == model.config.image:
            return record
        return record | {"image_processor_type": "DeiTImageProcessor", "do_center_crop": True, "crop_size": crop_size}
    # transformers' ViT processor cannot crop; CLIP's is the same with a crop
    return record | {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_center_crop": True,
        "size": {"shortest_edge": min(target)},
        "crop_size": crop_size,
    }


def conversion_losses(model: Model) -> ConversionLosses:
    config, dropped = model.config, training_settings(model.config)
    if isinstance(config, ResNetConfig):
        return ConversionLosses(unsupported=["a ResNet: the hf format holds pure ViTs"])
    unsupported = unknown_options(KNOWN, config)
    if config.stem:
        unsupported.append("the hybrid's convolutional stem")
    if config.positions != "1d" or config.inject != "stem":
        unsupported.append(
            f"positions={config.positions!r} injected at {config.inject!r}: "
            "transformers' ViT has one 1-D table, at the stem"
        )
    if config.pool != "token":
        unsupported.append(f"pool={config.pool!r}: transformers' ViT reads its class token")
    if config.norm == "post" or config.axial:
        unsupported.append("post-norm or axial blocks")
    if config.representation and config.classes:
        unsupported.append("pre_logits, the tanh layer of the pre-training head, in front of logits")
    if model.metadata.preprocessing.resize == "letterbox":
        dropped.append("letterbox preprocessing: written as a crop")
    return ConversionLosses(unsupported=unsupported, dropped=dropped)


def rules(config: ViTConfig) -> Iterator[mapping.Rule]:
    root = "vit." if config.classes else ""
    yield mapping.patch_convolution(
        "patches.project.weight", f"{root}embeddings.patch_embeddings.projection.weight", config.channels, config.patch
    )
    yield from mapping.same_layer("patches.project", f"{root}embeddings.patch_embeddings.projection", ["bias"])
    yield mapping.batched("class_token", f"{root}embeddings.cls_token")
    yield mapping.batched("encoder.positions.0.table", f"{root}embeddings.position_embeddings")
    for layer in range(config.depth):
        ours, theirs = f"encoder.blocks.{layer}", f"{root}encoder.layer.{layer}"
        for name in ("weight", "bias"):
            yield mapping.concatenated(
                f"{ours}.attention.qkv.{name}",
                [f"{theirs}.attention.attention.{projection}.{name}" for projection in ("query", "key", "value")],
            )
        yield from mapping.same_layer(f"{ours}.attention_norm", f"{theirs}.layernorm_before")
        yield from mapping.same_layer(f"{ours}.attention.out", f"{theirs}.attention.output.dense")
        yield from mapping.same_layer(f"{ours}.mlp_norm", f"{theirs}.layernorm_after")
        yield from mapping.same_layer(f"{ours}.mlp.up", f"{theirs}.intermediate.dense")
        yield from mapping.same_layer(f"{ours}.mlp.down", f"{theirs}.output.dense")
    yield from mapping.same_layer("encoder.norm", f"{root}layernorm")
    if config.representation:
        yield from mapping.same_layer("head.representation", "pooler.dense")
    if config.classes:
        yield from mapping.same_layer("head.logits", "classifier")


def _infer(checkpoint: Checkpoint) -> ViTConfig:
    settings = checkpoint.config
    root = "vit." if checkpoint.has("vit.embeddings.patch_embeddings.projection.weight") else ""
    width, channels, patch, patch_width = checkpoint.shape(f"{root}embeddings.patch_embeddings.projection.weight", 4)
    positions = checkpoint.shape(f"{root}embeddings.position_embeddings", 3)[1]
    if patch != patch_width:
        raise WeightsError(f"{checkpoint.origin} has {patch} x {patch_width} patches; vitkit's patches are square.")
    activation = settings.get("hidden_act", "gelu")
    if activation not in _GELU:
        raise WeightsError(
            f"{checkpoint.origin} uses the activation {activation!r}; vitkit's MLP uses GELU.", known=", ".join(_GELU)
        )
    size = settings.get("image_size")
    if size is not None:
        checkpoint = replace(checkpoint, image=parse_size(size))
    return ViTConfig(
        depth=checkpoint.count(f"{root}encoder.layer."),
        width=width,
        patch=patch,
        channels=channels,
        mlp=checkpoint.shape(f"{root}encoder.layer.0.intermediate.dense.weight", 2)[0],
        heads=infer_heads(checkpoint, width, settings.get("num_attention_heads")),
        image=infer_image(checkpoint, positions - 1, patch),
        classes=checkpoint.length("classifier.bias") or 0,
        representation=checkpoint.length("pooler.dense.bias"),
        gelu=_GELU[activation],
        eps=settings.get("layer_norm_eps", 1e-12),
    )


def _labels(checkpoint: Checkpoint, classes: int) -> tuple[str, ...] | None:
    names = checkpoint.config.get("id2label") or {}
    labels = tuple(names.get(str(index), "") for index in range(classes))
    placeholders = all(label in ("", f"LABEL_{index}") for index, label in enumerate(labels))
    return None if placeholders else labels


def _fix(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    fixed = mapping.zero_biases(tensors, r"(?:vit\.)?encoder\.layer\.\d+\.attention\.attention\.(?:query|key|value)")
    # older files of classifiers still hold a pooler, which a classifier never uses
    return {name: tensor for name, tensor in fixed.items() if not name.startswith("vit.pooler.")}
