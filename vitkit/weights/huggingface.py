"""Hugging Face transformers' ViT: a folder of config.json, preprocessor_config.json and model.safetensors.

ViTForImageClassification keeps its encoder under "vit."; a bare ViTModel does not, and may have a tanh pooler, which is
the paper's pre-training layer without its logits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor

from vitkit.data.preprocessing import Interpolation, Preprocessing
from vitkit.errors import WeightsError
from vitkit.model.base import Metadata
from vitkit.model.build import Model
from vitkit.model.config import Gelu, ResNetConfig, ViTConfig
from vitkit.weights.formats import Checkpoint, Content, Losses, training_losses
from vitkit.weights.infer_sizes import find_heads, find_image
from vitkit.weights.mapping import Rule, batched, fused, parameters, patch_convolution, read, write, zero_biases

_GELU: dict[str, Gelu] = {
    "gelu": "exact",
    "gelu_python": "exact",
    "gelu_new": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_fast": "tanh",
}
_RESAMPLE: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers


def recognises(names: Collection[str]) -> bool:
    return any(f"{prefix}embeddings.patch_embeddings.projection.weight" in names for prefix in ("vit.", ""))


def load(checkpoint: Checkpoint) -> Content:
    kind = checkpoint.config.get("model_type", "vit")
    if kind != "vit":
        raise WeightsError(f"{checkpoint.origin} is a {kind} model of transformers; vitkit reads its vit.")
    checkpoint = replace(checkpoint, tensors=_fix(checkpoint.tensors))
    config = _infer(checkpoint)
    metadata = Metadata(
        labels=_labels(checkpoint, config.classes),
        preprocessing=_preprocessing(checkpoint),
        provenance=checkpoint.config.get("vitkit", {"format": "hf"}),
    )
    state = read(checkpoint.tensors, rules(config), config, checkpoint.origin)
    return Content(config=config, state=state, metadata=metadata)


def tensors_of(model: Model) -> dict[str, Tensor]:
    assert isinstance(model.config, ViTConfig)
    return write(model, rules(model.config))


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
        "resample": {name: number for number, name in _RESAMPLE.items()}[preprocessing.interpolation],
        "vitkit": asdict(preprocessing),
    }
    if preprocessing.resize == "squash":
        return record | {"image_processor_type": "ViTImageProcessor", "size": {"height": height, "width": width}}
    # transformers' ViT processor has no crop; CLIP's does the same with one
    short = round(min(height, width) / preprocessing.crop)
    return record | {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_center_crop": True,
        "size": {"shortest_edge": short},
        "crop_size": {"height": height, "width": width},
    }


def losses(model: Model) -> Losses:
    config, structure, notes = model.config, [], training_losses(model.config)
    if isinstance(config, ResNetConfig):
        return Losses(structure=["a ResNet: transformers' ViT format holds pure ViTs"])
    if config.stem:
        structure.append("the hybrid's convolutional stem")
    if config.positions != "1d" or config.inject != "stem":
        structure.append(
            f"positions={config.positions!r} injected at {config.inject!r}: "
            "transformers' ViT has one 1-D table, at the stem"
        )
    if config.pool != "token":
        structure.append(f"pool={config.pool!r}: transformers' ViT reads its class token")
    if config.norm == "post" or config.axial:
        structure.append("post-norm or axial blocks")
    if config.representation and config.classes:
        structure.append("pre_logits, the tanh layer of the pre-training head, in front of logits")
    if model.metadata.preprocessing.resize == "letterbox":
        notes.append("letterbox preprocessing: written as a crop")
    return Losses(structure=structure, notes=notes)


def rules(config: ViTConfig) -> Iterator[Rule]:
    root = "vit." if config.classes else ""
    yield patch_convolution(
        "patches.project.weight", f"{root}embeddings.patch_embeddings.projection.weight", config.channels, config.patch
    )
    yield from parameters("patches.project", f"{root}embeddings.patch_embeddings.projection", ["bias"])
    yield batched("class_token", f"{root}embeddings.cls_token")
    yield batched("encoder.positions.0.table", f"{root}embeddings.position_embeddings")
    for layer in range(config.depth):
        ours, theirs = f"encoder.blocks.{layer}", f"{root}encoder.layer.{layer}"
        for name in ("weight", "bias"):
            yield fused(
                f"{ours}.attention.qkv.{name}",
                [f"{theirs}.attention.attention.{part}.{name}" for part in ("query", "key", "value")],
            )
        yield from parameters(f"{ours}.attention_norm", f"{theirs}.layernorm_before")
        yield from parameters(f"{ours}.attention.out", f"{theirs}.attention.output.dense")
        yield from parameters(f"{ours}.mlp_norm", f"{theirs}.layernorm_after")
        yield from parameters(f"{ours}.mlp.up", f"{theirs}.intermediate.dense")
        yield from parameters(f"{ours}.mlp.down", f"{theirs}.output.dense")
    yield from parameters("encoder.norm", f"{root}layernorm")
    if config.representation:
        yield from parameters("head.representation", "pooler.dense")
    if config.classes:
        yield from parameters("head.logits", "classifier")


def _infer(checkpoint: Checkpoint) -> ViTConfig:
    said = checkpoint.config
    root = "vit." if checkpoint.has("vit.embeddings.patch_embeddings.projection.weight") else ""
    width, channels, patch, patch_width = checkpoint.shape(f"{root}embeddings.patch_embeddings.projection.weight", 4)
    positions = checkpoint.shape(f"{root}embeddings.position_embeddings", 3)[1]
    if patch != patch_width:
        raise WeightsError(f"{checkpoint.origin} has {patch} x {patch_width} patches; vitkit's are square.")
    activation = said.get("hidden_act", "gelu")
    if activation not in _GELU:
        raise WeightsError(
            f"{checkpoint.origin} uses the activation {activation!r}; vitkit's MLP is a GELU.", known=", ".join(_GELU)
        )
    size = said.get("image_size")
    if size is not None:
        checkpoint = replace(checkpoint, image=(size, size) if isinstance(size, int) else tuple(size))
    return ViTConfig(
        depth=checkpoint.count(f"{root}encoder.layer."),
        width=width,
        patch=patch,
        channels=channels,
        mlp=checkpoint.shape(f"{root}encoder.layer.0.intermediate.dense.weight", 2)[0],
        heads=find_heads(checkpoint, width, said.get("num_attention_heads")),
        image=find_image(checkpoint, positions - 1, patch),
        classes=checkpoint.length("classifier.bias") or 0,
        representation=checkpoint.length("pooler.dense.bias"),
        gelu=_GELU[activation],
        eps=said.get("layer_norm_eps", 1e-12),
    )


def _labels(checkpoint: Checkpoint, classes: int) -> tuple[str, ...] | None:
    named = checkpoint.config.get("id2label") or {}
    labels = tuple(named.get(str(index), "") for index in range(classes))
    placeholders = all(label in ("", f"LABEL_{index}") for index, label in enumerate(labels))
    return None if placeholders else labels


def _preprocessing(checkpoint: Checkpoint) -> Preprocessing:
    said = checkpoint.preprocessor
    if said is None:
        return Preprocessing()
    size, default = said.get("size", {}), Preprocessing()
    shortest = size.get("shortest_edge") if isinstance(size, Mapping) else None
    cut = said.get("crop_size", {})
    target = min(cut.values(), default=shortest) if isinstance(cut, Mapping) else cut
    if "vitkit" in said:  # written here: exact where transformers' whole pixels are not
        return Preprocessing.from_record(said["vitkit"])
    scaled = said.get("do_normalize", True)
    return Preprocessing(
        resize="squash" if shortest is None else "crop",
        crop=target / shortest if shortest else 1.0,
        interpolation=_RESAMPLE.get(said.get("resample", 3), "bicubic"),
        mean=tuple(said.get("image_mean", default.mean)) if scaled else (0.0,),
        std=tuple(said.get("image_std", default.std)) if scaled else (1.0,),
    )


def _fix(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    fixed = zero_biases(tensors, r"(?:vit\.)?encoder\.layer\.\d+\.attention\.attention\.(?:query|key|value)")
    # a classifier never uses the pooler that older files still carry
    return {name: tensor for name, tensor in fixed.items() if not name.startswith("vit.pooler.")}
