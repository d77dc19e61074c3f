"""Checkpoints with an image tower and a text tower (CLIP, SigLIP): keep the one, leave the other out, note the scale.

The text tower is left out, with one line that says so. The scale and the bias of the logits, which compare an image
with a text, go into the provenance, where zero-shot classification finds them (`text_embeddings.py`).
"""

import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitkit.data.preprocessing import Preprocessing
from vitkit.errors import WeightsError
from vitkit.weights import mapping
from vitkit.weights.formats import Checkpoint
from vitkit.weights.huggingface_preprocessing import preprocessing_of

SCALE, BIAS = "logit_scale", "logit_bias"

log = logging.getLogger("vitkit")


def separate_towers(checkpoint: Checkpoint, text: str, buffers: str) -> tuple[Checkpoint, dict[str, float]]:
    """Return the checkpoint without its text tower and its buffers, and the scale and bias of its logits.

    `text` and `buffers` are patterns of the names of tensors.
    """
    kept: dict[str, Tensor] = {}
    left_out: list[Tensor] = []
    logits: dict[str, float] = {}
    for name, tensor in checkpoint.tensors.items():
        if name in (SCALE, BIAS):
            logits[name] = _number(checkpoint, name, tensor)
        elif re.fullmatch(text, name):
            left_out.append(tensor)
        elif not re.fullmatch(buffers, name):
            kept[name] = tensor
    if left_out:
        log.warning(
            "%s: the text tower is left out (%d tensors, %s parameters); vitkit reads the image tower",
            checkpoint.origin,
            len(left_out),
            f"{sum(tensor.numel() for tensor in left_out):,}",
        )
    return replace(checkpoint, tensors=kept), logits


def provenance_of(stored: Mapping[str, Any] | None, format: str, logits: Mapping[str, float]) -> dict[str, Any]:
    """Return the provenance that vitkit recorded, or a new one, with the scale and bias of the logits."""
    return {**(stored or {"format": format}), **logits}


def default_preprocessing(
    settings: Mapping[str, Any] | None, processor: str, image: tuple[int, int], channels: int
) -> Preprocessing:
    """Return what preprocessor_config.json says, or what transformers' processor of this kind does by default."""
    if settings is not None:
        return preprocessing_of(settings, channels)
    side = {"shortest_edge": min(image)} if processor == "CLIP" else {"height": image[0], "width": image[1]}
    sizes = {"size": side, "crop_size": min(image), "image_processor_type": f"{processor}ImageProcessor"}
    default = preprocessing_of(sizes, channels)
    return replace(
        default,
        mean=default.mean if channels == 3 else default.mean[:1] * channels,
        std=default.std if channels == 3 else default.std[:1] * channels,
        origin=f"transformers' default for {processor}, there is no preprocessor_config.json",
    )


def root_of(names: Iterable[str]) -> str:
    """Return the prefix of the image tower's tensors in transformers' files; bare ones of version 5 have none."""
    return "vision_model." if "vision_model.embeddings.patch_embedding.weight" in names else ""


def block_rules(depth: int, root: str) -> Iterator[mapping.Rule]:
    """Yield the rules of the blocks of transformers' CLIP and SigLIP, which have the same names."""
    for layer in range(depth):
        ours, theirs = f"encoder.blocks.{layer}", f"{root}encoder.layers.{layer}"
        for name in ("weight", "bias"):
            yield mapping.concatenated(
                f"{ours}.attention.qkv.{name}",
                [f"{theirs}.self_attn.{projection}_proj.{name}" for projection in ("q", "k", "v")],
            )
        yield from mapping.same_layer(f"{ours}.attention_norm", f"{theirs}.layer_norm1")
        yield from mapping.same_layer(f"{ours}.attention.out", f"{theirs}.self_attn.out_proj")
        yield from mapping.same_layer(f"{ours}.mlp_norm", f"{theirs}.layer_norm2")
        yield from mapping.same_layer(f"{ours}.mlp.up", f"{theirs}.mlp.fc1")
        yield from mapping.same_layer(f"{ours}.mlp.down", f"{theirs}.mlp.fc2")


def announce_unused_pixels(checkpoint: Checkpoint, image: tuple[int, int]) -> None:
    """Say where the configured image size is no multiple of the patch: the original drops the pixels that are over."""
    if checkpoint.image is not None and checkpoint.image != image:
        log.warning(
            "%s is for images of %d x %d px, of which its patches cover %d x %d; images will be resized to these",
            checkpoint.origin,
            *checkpoint.image,
            *image,
        )


def _number(checkpoint: Checkpoint, name: str, tensor: Tensor) -> float:
    value = float(tensor) if tensor.numel() == 1 and tensor.is_floating_point() else math.nan
    if not math.isfinite(value):
        raise WeightsError(
            f"{checkpoint.origin} has {name} in the shape {tuple(tensor.shape)}, where one finite number is expected."
            if tensor.numel() != 1
            else f"{checkpoint.origin} has a {name} that is no finite number."
        )
    return value
