"""The ViTs of Hugging Face transformers: a folder of config.json, preprocessor_config.json and model.safetensors.

A classifier keeps its encoder under the name of its family ("vit.", "dinov2."); a bare model does not, and may have a
tanh pooler, which is the paper's pre-training layer without the logits. huggingface_families.py lists the families.
"""

import logging
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitkit.errors import WeightsError
from vitkit.model.allow_list import allow
from vitkit.model.base import Metadata
from vitkit.model.build import Model
from vitkit.model.config import ViTConfig
from vitkit.stored_json import conform
from vitkit.text import counted
from vitkit.weights import mapping
from vitkit.weights.formats import Checkpoint, ConversionLosses, LoadedWeights, training_settings, unknown_options
from vitkit.weights.huggingface_families import BY_TYPE, FAMILIES, Family, choose_family
from vitkit.weights.huggingface_infer import TransformersConfig, infer_config, infer_type
from vitkit.weights.huggingface_names import body_rules, zero_padded_foreign, zero_padded_native
from vitkit.weights.huggingface_preprocessing import preprocessing_of, preprocessor_of

__all__ = ["config_of", "conversion_losses", "load", "preprocessor_of", "recognises", "tensors_of"]

# of the decoder that MAE was trained with, all that transformers has; version 5 writes its layers as "encoder.layer"
_MAE_DECODER = re.compile(
    r"decoder\.(mask_token|decoder_pos_embed|decoder_(embed|norm|pred)\.(weight|bias)|decoder_(layers|encoder\.layer)\.\d+\..+)"
)

# The options of a plain ViT that `conversion_losses` judges and `config_of` writes.
KNOWN = allow(
    "the hf format",
    vit="depth width mlp heads patch stem image channels classes positions inject pool class_token representation "
    "norm axial gelu eps dropout stochastic_depth",
    plain="patch_bias class_position distillation registers projection normalise ln_pre query_bias key_bias "
    "value_bias swiglu layer_scale rotary rotary_base rotary_layout content induced seeds",
    only={"attention": (None,), "gelu": ("tanh", "exact"), "pool": ("token", "gap", "gap-norm", "attention")},
    conv="layers width preactivation standardise_eps standardise_on norm_eps attention",
)

log = logging.getLogger("vitkit")


def recognises(names: Collection[str]) -> bool:
    return any(f"{root}{family.names.patches}.weight" in names for family in FAMILIES for root in (family.body, ""))


def load(checkpoint: Checkpoint) -> LoadedWeights:
    settings = conform(checkpoint.config, TransformersConfig, f"config.json of {checkpoint.origin}", error=WeightsError)
    checkpoint = replace(checkpoint, config=settings)
    kind = settings.get("model_type") or infer_type(checkpoint)
    if kind not in BY_TYPE:
        raise WeightsError(
            f"{checkpoint.origin} is a model of the type {kind}; of transformers' models, vitkit reads "
            f"{', '.join(BY_TYPE)}."
        )
    family = BY_TYPE[kind]
    root = family.body if checkpoint.has(f"{family.body}{family.names.patches}.weight") else ""
    checkpoint = replace(checkpoint, tensors=_fix(checkpoint, family, root))
    config = infer_config(checkpoint, family, root)
    metadata = Metadata(
        labels=_labels(checkpoint, config.classes),
        preprocessing=preprocessing_of(checkpoint.preprocessor, config.channels, family.preprocessing),
        provenance=checkpoint.config.get("vitkit", {"format": "hf", **({} if kind == "vit" else {"model_type": kind})}),
        interpolation=family.interpolation,
    )
    two_heads = config.distillation == "heads"
    state = mapping.to_native_state(
        checkpoint.tensors, rules(config, family, root, two_heads=two_heads), config, checkpoint.origin
    )
    return LoadedWeights(config=config, state=state, metadata=metadata)


def tensors_of(model: Model) -> dict[str, Tensor]:
    config = model.config
    assert isinstance(config, ViTConfig)
    family = _family(model)
    root = family.body if config.classes else ""
    tensors = mapping.to_foreign_tensors(model, rules(config, family, root, two_heads=_two_heads(model)))
    if family.mask_token:  # as transformers initialises it
        tensors[f"{root}embeddings.mask_token"] = torch.zeros(*family.mask_token, config.width)
    if family.registers and not config.registers:
        tensors[f"{root}embeddings.register_tokens"] = torch.zeros(1, 0, config.width)
    return tensors


def config_of(model: Model) -> dict[str, Any]:
    config = model.config
    assert isinstance(config, ViTConfig)
    family = _family(model)
    labels = model.metadata.labels or [f"LABEL_{index}" for index in range(config.classes)]
    teacher = "WithTeacher" if _two_heads(model) else ""
    record = {
        "architectures": [f"{family.name}ForImageClassification{teacher}" if config.classes else f"{family.name}Model"],
        "model_type": family.model_type,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "hidden_act": "gelu_pytorch_tanh" if config.gelu == "tanh" else "gelu",
        "layer_norm_eps": config.eps,
        "image_size": config.image[0] if config.image[0] == config.image[1] else list(config.image),
        "patch_size": config.patch,
        "num_channels": config.channels,
        "dtype": "float32",
        "vitkit": dict(model.metadata.provenance),
    }
    if family.wide_classifier:
        record |= {"mlp_ratio": _mlp_ratio(config), "use_swiglu_ffn": config.swiglu}
    else:
        record["intermediate_size"] = config.mlp
    if family.rotary:
        record |= {"rope_theta": config.rotary_base, "use_gated_mlp": config.swiglu}
        record |= {name: getattr(config, name) for name in ("query_bias", "key_bias", "value_bias")}
        if config.swiglu:
            record["hidden_act"] = "silu"
    else:
        record |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "qkv_bias": True}
    if family.layer_scale:
        record["layerscale_value"] = config.layer_scale
    if family.registers:
        record["num_register_tokens"] = config.registers
    if family.pooler:
        record |= {"pooler_act": "tanh", "pooler_output_size": config.representation or config.width}
    if config.classes:
        record["id2label"] = {str(index): label for index, label in enumerate(labels)}
        record["label2id"] = {label: index for index, label in enumerate(labels)}
    return record


def conversion_losses(model: Model) -> ConversionLosses:
    config, dropped = model.config, training_settings(model.config)
    if not isinstance(config, ViTConfig):
        return ConversionLosses(unsupported=[f"{model.kind}: the hf format holds pure ViTs"])
    family = _family(model)
    unsupported = _unsupported_by_vit(config) if family.model_type == "vit" else _unsupported_by(family, model)
    if family.mask_token:
        dropped.append("mask_token: only masked pre-training uses it, and zeros are written in its place")
    if model.metadata.preprocessing.resize == "letterbox":
        dropped.append("letterbox preprocessing: written as a crop")
    return ConversionLosses(unsupported=unsupported, dropped=dropped)


def _unsupported_by_vit(config: ViTConfig) -> list[str]:
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
    return unsupported


def _unsupported_by(family: Family, model: Model) -> list[str]:
    config = model.config
    assert isinstance(config, ViTConfig)
    unsupported = []
    if config.representation and config.classes:
        unsupported.append("pre_logits, the tanh layer of the pre-training head, in front of logits")
    elif config.representation and model.state_dict()["head.representation.weight"][:, config.width :].any():
        unsupported.append("a tanh layer that reads the distillation token: transformers' reads the class token")
    if family.wide_classifier and _mlp_ratio(config) is None:
        unsupported.append(f"an MLP of width {config.mlp}: transformers' DINOv2 has whole multiples of its width")
    if family.wide_classifier and config.image[0] != config.image[1]:
        unsupported.append("positions for images that are not square: transformers' DINOv2 reads them as a square")
    return unsupported


def rules(config: ViTConfig, family: Family, root: str, *, two_heads: bool) -> Iterator[mapping.Rule]:
    """Yield the rules of a model; `two_heads`: DeiT's classifier with one head for each of its two tokens."""
    yield from body_rules(config, family.names, root)
    if config.representation:
        layer = zero_padded_native if family.distillation else _unchanged
        yield layer("head.representation.weight", "pooler.dense.weight", config.width)
        yield mapping.unchanged("head.representation.bias", "pooler.dense.bias")
    if not config.classes:
        return
    if config.distillation == "heads":
        yield from mapping.same_layer("head.logits.class_token", "cls_classifier")
        yield from mapping.same_layer("head.logits.distillation_token", "distillation_classifier")
    elif two_heads:
        yield from _halves()
    else:
        if family.distillation:
            yield zero_padded_native("head.logits.weight", "classifier.weight", config.width)
        elif family.wide_classifier and config.pool == "token":
            yield zero_padded_foreign("head.logits.weight", "classifier.weight")
        else:
            yield mapping.unchanged("head.logits.weight", "classifier.weight")
        yield mapping.unchanged("head.logits.bias", "classifier.bias")


def _unchanged(native: str, foreign: str, width: int) -> mapping.Rule:
    return mapping.unchanged(native, foreign)


def _halves() -> Iterator[mapping.Rule]:
    """Yield the rules of one head that reads both tokens of DeiT as the mean of two heads, twice as large each."""
    for name, split, join in (
        ("weight", lambda layer: (2 * layer).chunk(2, dim=1), lambda one, two: torch.cat([one, two], dim=1) / 2),
        ("bias", lambda bias: (2 * bias, torch.zeros_like(bias)), lambda one, two: (one + two) / 2),
    ):
        yield mapping.Rule(
            f"head.logits.{name}", (f"cls_classifier.{name}", f"distillation_classifier.{name}"), join, split
        )


def _family(model: Model) -> Family:
    assert isinstance(model.config, ViTConfig)
    return choose_family(model.config, model.metadata.provenance.get("model_type"))


def _two_heads(model: Model) -> bool:
    """Return whether DeiT's classifier needs a head for the distillation token."""
    config = model.config
    if not isinstance(config, ViTConfig) or config.distillation == "none" or not config.classes:
        return False
    return config.distillation == "heads" or bool(model.state_dict()["head.logits.weight"][:, config.width :].any())


def _mlp_ratio(config: ViTConfig) -> int | None:
    """Return the whole ratio for which DINOv2's code gives this MLP, or None; it keeps 2/3 of a SwiGLU's width."""
    for ratio in range(1, 33):
        hidden = config.width * ratio
        if config.mlp == ((hidden * 2 // 3 + 7) // 8 * 8 if config.swiglu else hidden):
            return ratio
    return None


def _labels(checkpoint: Checkpoint, classes: int) -> tuple[str, ...] | None:
    names = checkpoint.config.get("id2label") or {}
    labels = tuple(names.get(str(index), "") for index in range(classes))
    placeholders = all(label in ("", f"LABEL_{index}") for index, label in enumerate(labels))
    return None if placeholders else labels


def _fix(checkpoint: Checkpoint, family: Family, root: str) -> dict[str, Tensor]:
    """Return the tensors with the zeros that qkv_bias=False leaves out, and without what vitkit's models do not use."""
    tensors = dict(checkpoint.tensors)
    if not family.rotary:
        layers = "|".join(re.escape(layer) for layer in (family.names.query, family.names.key, family.names.value))
        tensors = mapping.zero_biases(tensors, rf"{re.escape(root + family.names.blocks)}\d+\.(?:{layers})")
    if family.model_type == "vit":
        # older files of classifiers still hold a pooler, which a classifier never uses
        return {name: tensor for name, tensor in tensors.items() if not name.startswith("vit.pooler.")}
    mask, registers = f"{root}embeddings.mask_token", f"{root}embeddings.register_tokens"
    if family.mask_token and mask in tensors and tuple(tensors[mask].shape[:-1]) == family.mask_token:
        del tensors[mask]
        log.warning("%s: %s is left out; only masked pre-training uses it", checkpoint.origin, mask)
    if family.registers and registers in tensors and not tensors[registers].numel():
        del tensors[registers]
    if family.left_out:
        left_out = [name for name in tensors if _MAE_DECODER.fullmatch(name)]
        for name in left_out:
            del tensors[name]
        if left_out:
            log.warning(
                "%s: %s of MAE's decoder left out (%s* …); only masked pre-training uses it",
                checkpoint.origin,
                counted(len(left_out), "tensor"),
                family.left_out,
            )
    return tensors
