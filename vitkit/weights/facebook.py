"""The files of DINOv2's, DINOv3's, DeiT-III's and MAE's authors, where their names differ from timm's; read only.

A file alone says nothing about epsilon, activation, rotary base and preprocessing: they are the published ones.
"""

import logging
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitkit.data.preprocessing import Preprocessing
from vitkit.errors import WeightsError
from vitkit.model.base import Metadata
from vitkit.model.config import ViTConfig
from vitkit.model.resize_positions import Interpolation
from vitkit.text import counted
from vitkit.weights import mapping, timm_dinov3, timm_infer
from vitkit.weights.formats import Checkpoint, LoadedWeights
from vitkit.weights.timm_names import vit_rules

# name in the file, name in timm; each a pattern and its inverse
_DINOV2 = (("register_tokens", "reg_token"), (".mlp.w12.", ".mlp.fc1."), (".mlp.w3.", ".mlp.fc2."))
_DEIT3 = ((".gamma_1", ".ls1.gamma"), (".gamma_2", ".ls2.gamma"))
_DINOV3 = (
    ("storage_tokens", "reg_token"),
    (".ls1.gamma", ".gamma_1"),
    (".ls2.gamma", ".gamma_2"),
    (".mlp.w1.", ".mlp.fc1_g."),
    (".mlp.w2.", ".mlp.fc1_x."),
    (".mlp.w3.", ".mlp.fc2."),
)
_MAE_DECODER = re.compile(
    r"mask_token|decoder_pos_embed|decoder_(embed|norm|pred)\.(weight|bias)|decoder_blocks\.\d+\..+"
)
# LayerNorm of small crops, which the 7B model has for its training only
_LOCAL_NORM = re.compile(r"local_cls_norm\.(weight|bias)")
_IMAGENET: dict[str, Any] = {
    "interpolation": "bicubic",
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "rounding": "timm",
    "origin": "as its authors evaluate it, the file does not say",
}

log = logging.getLogger("vitkit")


def recognises(names: Collection[str]) -> bool:
    return "patch_embed.proj.weight" in names and (
        _is_dinov3(names) or "mask_token" in names or "register_tokens" in names or _is_deit3(names)
    )


def load(checkpoint: Checkpoint) -> LoadedWeights:
    if checkpoint.config:
        raise WeightsError(
            f"{checkpoint.origin} has the names of a file of DINO's, DeiT's or MAE's authors, which comes without a "
            "config.json.",
            try_="the file alone, in another folder",
        )
    if _is_dinov3(checkpoint.tensors):
        return _load_dinov3(checkpoint)
    mae = checkpoint.has("decoder_embed.weight")
    deit3 = not mae and _is_deit3(checkpoint.tensors)
    renames = _applying(() if mae else _DEIT3 if deit3 else _DINOV2, checkpoint)
    checkpoint = _leave_out(
        checkpoint, _MAE_DECODER if mae else re.compile("mask_token"), "MAE's decoder" if mae else ""
    )
    config = timm_infer.infer_vit(_renamed(checkpoint, renames), {})
    interpolation: Interpolation = "bicubic-no-antialias" if mae or deit3 else "bicubic" if config.registers else "dino"
    preprocessing = Preprocessing(crop=1.0 if deit3 else 0.875, **_IMAGENET)
    return _weights(checkpoint, config, vit_rules(config), renames, preprocessing, interpolation)


def _load_dinov3(checkpoint: Checkpoint) -> LoadedWeights:
    checkpoint = _leave_out(checkpoint, re.compile("mask_token"), "")
    checkpoint = _leave_out(checkpoint, _LOCAL_NORM, "the norm of local crops")
    checkpoint = replace(checkpoint, tensors=_without_constants(checkpoint))
    has_bias = checkpoint.has("blocks.0.attn.qkv.bias")
    renames = _applying(_DINOV3, checkpoint)
    config = timm_dinov3.infer(_renamed(checkpoint, renames), {"global_pool": "token"})
    config = replace(config, query_bias=has_bias, value_bias=has_bias, layer_scale=1e-5)
    preprocessing = Preprocessing(resize="squash", **{**_IMAGENET, "interpolation": "bilinear"})
    return _weights(checkpoint, config, _joined_biases(config), renames, preprocessing, "paper")


def _weights(
    checkpoint: Checkpoint,
    config: ViTConfig,
    rules: Iterable[mapping.Rule],
    renames: Iterable[tuple[str, str]],
    preprocessing: Preprocessing,
    interpolation: Interpolation,
) -> LoadedWeights:
    own = [replace(rule, foreign=tuple(_rename(name, _inverse(renames)) for name in rule.foreign)) for rule in rules]
    if config.channels != len(preprocessing.mean):
        half = (0.5,) * config.channels
        preprocessing = replace(
            preprocessing, mean=half, std=half, origin="[-1, 1]: not the 3 channels it was made for"
        )
    return LoadedWeights(
        config=config,
        state=mapping.to_native_state(checkpoint.tensors, own, config, checkpoint.origin),
        metadata=Metadata(preprocessing=preprocessing, provenance={"format": "facebook"}, interpolation=interpolation),
    )


def _is_dinov3(names: Collection[str]) -> bool:
    return "storage_tokens" in names or "rope_embed.periods" in names


def _is_deit3(names: Collection[str]) -> bool:
    return "blocks.0.gamma_1" in names and "pos_embed" in names


def _joined_biases(config: ViTConfig) -> Iterator[mapping.Rule]:
    """Yield timm's rules, but with the biases of q, k and v in one tensor, whose k is zero."""
    for rule in timm_dinov3.rules(config):
        if rule.natives[0].endswith("attention.qkv.bias"):
            yield mapping.Rule(
                rule.native,
                (rule.foreign[0].replace("q_bias", "qkv.bias"),),
                lambda bias: torch.cat([bias.chunk(3)[0], bias.chunk(3)[2]]),
                lambda bias: (
                    torch.cat([bias[: len(bias) // 2], bias.new_zeros(len(bias) // 2), bias[len(bias) // 2 :]]),
                ),
            )
        else:
            yield rule


def _without_constants(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return the tensors without those that the model computes: rotary periods, and masks of the biases.

    A value other than the published model's is an error.
    """
    tensors = dict(checkpoint.tensors)
    periods = tensors.pop("rope_embed.periods", None)
    if periods is not None:
        exponents = torch.arange(len(periods)) / len(periods)
        # stored in bf16, which has 8 bits
        if not torch.allclose(periods.float(), timm_dinov3.BASE**exponents, rtol=2**-7):
            raise WeightsError(f"{checkpoint.origin}: rope_embed.periods are not those of DINOv3, of base 100.")
    for name in [name for name in tensors if name.endswith(".attn.qkv.bias_mask")]:
        mask = tensors.pop(name)
        query, key, value = mask.chunk(3)
        if key.any() or not ((query == 1).all() and (value == 1).all()):
            raise WeightsError(f"{checkpoint.origin}: {name} does not keep the biases of q and v and drop k's.")
    return tensors


def _leave_out(checkpoint: Checkpoint, pattern: re.Pattern[str], what: str) -> Checkpoint:
    left_out = [name for name in checkpoint.tensors if pattern.fullmatch(name)]
    if left_out:
        names = f"{counted(len(left_out), 'tensor')} of {what}" if what else left_out[0]
        log.warning("%s: %s left out; only pre-training uses it", checkpoint.origin, names)
    kept = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in left_out}
    return replace(checkpoint, tensors=kept)


def _renamed(checkpoint: Checkpoint, renames: Iterable[tuple[str, str]]) -> Checkpoint:
    return replace(checkpoint, tensors={_rename(name, renames): tensor for name, tensor in checkpoint.tensors.items()})


def _applying(renames: Iterable[tuple[str, str]], checkpoint: Checkpoint) -> list[tuple[str, str]]:
    """Return the renames that the file needs: an MLP without a gate has timm's names."""
    return [(old, new) for old, new in renames if any(old in name for name in checkpoint.tensors)]


def _rename(name: str, renames: Iterable[tuple[str, str]]) -> str:
    for old, new in renames:
        if old in name:
            return name.replace(old, new)
    return name


def _inverse(renames: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(new, old) for old, new in renames]
