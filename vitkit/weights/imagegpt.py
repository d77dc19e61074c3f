"""transformers' ImageGPT, and so OpenAI's iGPT: a folder of config.json, preprocessor_config.json and weights.

The clusters of its preprocessor are the palette, in the space of normalised pixels. Its classifiers are not read: they
leave the start of the sequence out, which OpenAI's code and ours have, so their logits would be others.
"""

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from math import isqrt
from typing import Any, TypedDict

import torch
from torch import Tensor

from vitkit.data.preprocessing import Preprocessing
from vitkit.errors import WeightsError
from vitkit.model.allow_list import allow
from vitkit.model.base import Metadata, Provenance
from vitkit.model.build import Model
from vitkit.model.config import ModelConfig
from vitkit.model.igpt_config import IGPTConfig
from vitkit.stored_json import conform
from vitkit.weights import mapping
from vitkit.weights.formats import Checkpoint, ConversionLosses, LoadedWeights, training_settings, unknown_options

KNOWN = allow(
    "transformers' ImageGPT",
    igpt="depth width mlp heads image channels colours classes causal eps dropout",
    only={"causal": (True,), "channels": (3,), "classes": (0,)},
)
log = logging.getLogger("vitkit")

BODY = "transformer."  # of a model that predicts colours; a bare one has no prefix
# the same as of transformers' image processor, whose images are normalised to [-1, 1]
PREPROCESSING = Preprocessing(resize="squash", interpolation="bilinear")
# what config.json may say about the arithmetic; another value is another model
ARITHMETIC = {"activation_function": "quick_gelu", "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}
_MASKS = re.compile(r".*\.attn\.(bias|masked_bias)")  # stored by earlier versions of transformers


class _Config(TypedDict, total=False):
    """The part of config.json that is read."""

    model_type: str
    n_head: int
    layer_norm_epsilon: float
    activation_function: str
    scale_attn_weights: bool
    scale_attn_by_inverse_layer_idx: bool
    vitkit: Provenance


class _Preprocessor(TypedDict, total=False):
    """The part of preprocessor_config.json that is read."""

    clusters: list[list[float]] | None
    vitkit: dict[str, Any]


def recognises(names: Collection[str]) -> bool:
    return any(f"{root}wpe.weight" in names and f"{root}h.0.ln_1.weight" in names for root in (BODY, ""))


def load(checkpoint: Checkpoint) -> LoadedWeights:
    origin = checkpoint.origin
    settings: _Config = conform(checkpoint.config, _Config, f"config.json of {origin}", error=WeightsError)
    _check(settings, checkpoint)
    root = BODY if checkpoint.has(f"{BODY}wpe.weight") else ""
    config = _infer(checkpoint, settings, root)
    stored: _Preprocessor = conform(
        checkpoint.preprocessor or {}, _Preprocessor, f"preprocessor_config.json of {origin}", error=WeightsError
    )
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if not _MASKS.fullmatch(name)}
    if len(tensors) < len(checkpoint.tensors):
        log.warning("%s: the causal masks are left out, the model computes them", origin)
    tensors["clusters"] = _palette(stored, config, origin)
    if not root:  # a bare model predicts no colours
        tensors["lm_head.weight"] = torch.zeros(config.colours, config.width)
    preprocessing = Preprocessing.from_record(stored["vitkit"]) if "vitkit" in stored else PREPROCESSING
    return LoadedWeights(
        config=config,
        state=mapping.to_native_state(tensors, rules(config, root), config, origin),
        metadata=Metadata(
            preprocessing=preprocessing,
            provenance=settings.get("vitkit", {"format": "hf", "model_type": "imagegpt"}),
        ),
    )


def _check(settings: _Config, checkpoint: Checkpoint) -> None:
    kind = settings.get("model_type", "imagegpt")
    if kind != "imagegpt":
        raise WeightsError(f"{checkpoint.origin} is a model of the type {kind}, of which vitkit reads imagegpt only.")
    for name, expected in ARITHMETIC.items():
        if settings.get(name, expected) != expected:
            raise WeightsError(f"{checkpoint.origin} has another {name} than vitkit's iGPT.", expected=str(expected))
    if checkpoint.has("score.weight"):
        raise WeightsError(
            f"{checkpoint.origin} is a classifier of transformers, which leaves the start of the sequence out: its "
            "logits would be others here.",
            try_="the pre-trained weights, ImageGPTForCausalImageModeling, and vitkit fit",
        )


def _infer(checkpoint: Checkpoint, settings: _Config, root: str) -> IGPTConfig:
    rows, width = checkpoint.shape(f"{root}wte.weight", 2)
    positions, _ = checkpoint.shape(f"{root}wpe.weight", 2)
    if "n_head" in settings and checkpoint.heads not in (None, settings["n_head"]):
        raise WeightsError(
            f"config.json of {checkpoint.origin} has {settings['n_head']} heads, not {checkpoint.heads}."
        )
    heads = checkpoint.heads or settings.get("n_head")
    if not heads:
        raise WeightsError(f"{checkpoint.origin} does not say how many heads it has.", try_="heads=…, or --heads")
    grid = checkpoint.grid or (isqrt(positions), isqrt(positions))
    if grid[0] * grid[1] != positions:
        raise WeightsError(
            f"{checkpoint.origin} has {positions} positions, which are not {grid[0]} x {grid[1]} pixels.",
            try_="grid=(rows, columns), or --grid",
        )
    return IGPTConfig(
        depth=checkpoint.count(f"{root}h."),
        width=width,
        mlp=checkpoint.shape(f"{root}h.0.mlp.c_fc.weight", 2)[1],
        heads=heads,
        image=grid,
        colours=rows - 1,
        classes=0,
        eps=settings.get("layer_norm_epsilon", 1e-5),
    )


def _palette(stored: Mapping[str, Any], config: IGPTConfig, origin: str) -> Tensor:
    clusters = stored.get("clusters")
    if clusters is None:
        raise WeightsError(
            f"{origin} has no palette, without which its tokens have no colour.",
            looked_for="clusters in preprocessor_config.json in the same folder",
        )
    if {len(colour) for colour in clusters} != {config.channels} or len(clusters) != config.colours:
        raise WeightsError(
            f"the palette of {origin} has {len(clusters)} colours.",
            expected=f"{config.colours} of {config.channels} numbers, as wte.weight has rows, without the last",
        )
    return torch.tensor(clusters, dtype=torch.float32)


def holds(config: ModelConfig) -> bool:
    return isinstance(config, IGPTConfig)


def conversion_losses(model: Model) -> ConversionLosses:
    return ConversionLosses(unsupported=unknown_options(KNOWN, model.config), dropped=training_settings(model.config))


def tensors_of(model: Model) -> dict[str, Tensor]:
    assert isinstance(model.config, IGPTConfig)
    tensors = mapping.to_foreign_tensors(model, rules(model.config, BODY))
    del tensors["clusters"]  # which `preprocessor_of` writes
    return tensors


def config_of(model: Model) -> dict[str, Any]:
    config = model.config
    assert isinstance(config, IGPTConfig)
    return {
        "architectures": ["ImageGPTForCausalImageModeling"],
        "model_type": "imagegpt",
        "vocab_size": config.colours + 1,
        "n_positions": config.patches,
        "n_embd": config.width,
        "n_layer": config.depth,
        "n_head": config.heads,
        "n_inner": config.mlp,
        "layer_norm_epsilon": config.eps,
        **ARITHMETIC,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": False,
        "dtype": "float32",
        "vitkit": dict(model.metadata.provenance),
    }


def preprocessor_of(model: Model) -> dict[str, Any]:
    config, preprocessing = model.config, model.metadata.preprocessing
    return {
        "image_processor_type": "ImageGPTImageProcessor",
        "do_color_quantize": True,
        "do_normalize": True,
        "do_resize": True,
        "resample": 2 if preprocessing.interpolation == "bilinear" else 3,
        "size": {"height": config.image[0], "width": config.image[1]},
        "clusters": model.state_dict()["embedding.palette"].tolist(),
        "vitkit": asdict(preprocessing),
    }


def rules(config: IGPTConfig, root: str) -> Iterator[mapping.Rule]:
    yield mapping.unchanged("embedding.palette", "clusters")
    yield mapping.unchanged("embedding.colours", f"{root}wte.weight")
    yield mapping.unchanged("embedding.positions", f"{root}wpe.weight")
    for layer in range(config.depth):
        ours, theirs = f"encoder.blocks.{layer}", f"{root}h.{layer}"
        yield mapping.unchanged(f"{ours}.attention_norm.gain", f"{theirs}.ln_1.weight")
        yield mapping.unchanged(f"{ours}.mlp_norm.gain", f"{theirs}.ln_2.weight")
        for one, other in (
            ("attention.qkv", "attn.c_attn"),
            ("attention.out", "attn.c_proj"),
            ("mlp.up", "mlp.c_fc"),
            ("mlp.down", "mlp.c_proj"),
        ):
            yield mapping.transposed(f"{ours}.{one}.weight", f"{theirs}.{other}.weight")  # of (inputs, outputs)
            yield mapping.unchanged(f"{ours}.{one}.bias", f"{theirs}.{other}.bias")
    yield mapping.unchanged("encoder.norm.gain", f"{root}ln_f.weight")
    yield mapping.unchanged("next_colour.weight", "lm_head.weight")
