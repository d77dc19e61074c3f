"""The image towers of OpenAI's and OpenCLIP's own files: tensors `visual.…`, open_clip_config.json beside them.

Two kinds: OpenAI's ViT, with `visual.transformer.resblocks.…`, and models of timm under `visual.trunk.…` (SigLIP). Both
are read; they are written as transformers' or timm's CLIP and SigLIP, or in vitkit's own format.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypedDict

from vitkit.data.preprocessing import Interpolation, Preprocessing, Resize
from vitkit.errors import WeightsError
from vitkit.model.base import Metadata
from vitkit.model.config import ViTConfig, parse_size
from vitkit.model.options import Gelu
from vitkit.stored_json import conform
from vitkit.weights import mapping, timm
from vitkit.weights.formats import Checkpoint, LoadedWeights
from vitkit.weights.infer_sizes import infer_gelu, infer_heads, infer_image
from vitkit.weights.two_towers import announce_unused_pixels, provenance_of, separate_towers

# OpenAI's names, and OpenCLIP's for any other text tower
_TEXT = (
    r"text\..*|transformer\.resblocks\..*|token_embedding\.weight|positional_embedding|ln_final\.(weight|bias)"
    r"|text_projection(\.weight|\.bias)?"
)
_OPENAI = ("input_resolution", "context_length", "vocab_size")  # numbers that only OpenAI's files hold as tensors
_BUFFERS = "|".join((*_OPENAI, "attn_mask"))
_TRUNK = "visual.trunk."

_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_HALF = (0.5, 0.5, 0.5)
_RESIZE: dict[str, Resize] = {"shortest": "crop", "squash": "squash", "longest": "letterbox"}
_INTERPOLATION: dict[str, Interpolation] = {"bicubic": "bicubic", "bilinear": "bilinear", "random": "bicubic"}

# Settings of vision_cfg that are read, that only training uses, or that the tensors show; of all others, only a value
# that switches them off is understood.
_UNDERSTOOD = {
    *("layers", "width", "head_width", "mlp_ratio", "patch_size", "image_size", "patch_dropout", "output_tokens"),
    *("no_ln_pre", "act_kwargs", "norm_kwargs", "attn_pooler_queries", "attn_pooler_heads", "timm_model_name"),
    *("timm_model_pretrained", "timm_pool", "timm_proj", "timm_proj_bias", "timm_drop", "timm_drop_path"),
}
_OFF: dict[str, Any] = {"pool_type": "tok", "pos_embed_type": "learnable", "block_type": "default"}


class _ActivationSettings(TypedDict, total=False):
    approximate: str


class _NormSettings(TypedDict, total=False):
    eps: float


class _VisionSettings(TypedDict, total=False):
    """The part of vision_cfg that is read."""

    head_width: int
    image_size: int | tuple[int, int]
    act_kwargs: _ActivationSettings | None
    norm_kwargs: _NormSettings | None
    timm_model_name: str | None


class _ModelSettings(TypedDict, total=False):
    quick_gelu: bool
    vision_cfg: _VisionSettings


class _PreprocessSettings(TypedDict, total=False):
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    interpolation: str | None
    resize_mode: str | None


class _OpenClipSettings(TypedDict, total=False):
    model_cfg: _ModelSettings
    preprocess_cfg: _PreprocessSettings


def recognises(names: Collection[str]) -> bool:
    return "visual.conv1.weight" in names or f"{_TRUNK}patch_embed.proj.weight" in names


def load(checkpoint: Checkpoint) -> LoadedWeights:
    what = f"open_clip_config.json of {checkpoint.origin}"
    settings: _OpenClipSettings = conform(checkpoint.config, _OpenClipSettings, what, error=WeightsError)
    model: Mapping[str, Any] = settings.get("model_cfg", {})
    openai = all(checkpoint.has(name) for name in _OPENAI)
    checkpoint, logits = separate_towers(checkpoint, _TEXT, _BUFFERS)
    if checkpoint.has(f"{_TRUNK}patch_embed.proj.weight"):
        weights = timm.load(_trunk(checkpoint, model))
    else:
        config = _infer(checkpoint, model, openai=openai)
        state = mapping.to_native_state(checkpoint.tensors, rules(config), config, checkpoint.origin)
        weights = LoadedWeights(config=config, state=state, metadata=Metadata())
    metadata = Metadata(
        preprocessing=_preprocessing(checkpoint, settings.get("preprocess_cfg"), weights),
        provenance=provenance_of(None, "openclip", logits),
        interpolation="bicubic",  # antialiased, as OpenCLIP resizes its positions
    )
    return replace(weights, metadata=metadata)


def rules(config: ViTConfig) -> Iterator[mapping.Rule]:
    yield mapping.patch_convolution("patches.project.weight", "visual.conv1.weight", config.channels, config.patch)
    yield mapping.Rule(
        "class_token", ("visual.class_embedding",), lambda vector: vector[None], lambda token: (token[0],)
    )
    yield mapping.unchanged("encoder.positions.0.table", "visual.positional_embedding")
    if config.ln_pre:
        yield from mapping.same_layer("encoder.ln_pre", "visual.ln_pre")
    for layer in range(config.depth):
        ours, theirs = f"encoder.blocks.{layer}", f"visual.transformer.resblocks.{layer}"
        for name in ("weight", "bias"):
            yield mapping.unchanged(f"{ours}.attention.qkv.{name}", f"{theirs}.attn.in_proj_{name}")
        yield from mapping.same_layer(f"{ours}.attention_norm", f"{theirs}.ln_1")
        yield from mapping.same_layer(f"{ours}.attention.out", f"{theirs}.attn.out_proj")
        yield from mapping.same_layer(f"{ours}.mlp_norm", f"{theirs}.ln_2")
        yield from mapping.same_layer(f"{ours}.mlp.up", f"{theirs}.mlp.c_fc")
        yield from mapping.same_layer(f"{ours}.mlp.down", f"{theirs}.mlp.c_proj")
    yield from mapping.same_layer("encoder.norm", "visual.ln_post")
    yield mapping.transposed("projection.weight", "visual.proj")


def _infer(checkpoint: Checkpoint, model: Mapping[str, Any], *, openai: bool) -> ViTConfig:
    vision: Mapping[str, Any] = model.get("vision_cfg", {})
    _refuse_unknown(checkpoint, vision)
    width, channels, patch, patch_width = checkpoint.shape("visual.conv1.weight", 4)
    if patch != patch_width:
        raise WeightsError(f"{checkpoint.origin} has {patch} x {patch_width} patches; vitkit's patches are square.")
    if "image_size" in vision:
        checkpoint = replace(checkpoint, image=parse_size(vision["image_size"]))
    positions = checkpoint.shape("visual.positional_embedding", 2)[0]
    image = infer_image(checkpoint, positions - 1, patch)
    announce_unused_pixels(checkpoint, image)
    # of all towers of OpenAI and by default, a head has 64 numbers
    heads = width // vision.get("head_width", 64) if vision or openai else None
    return ViTConfig(
        depth=checkpoint.count("visual.transformer.resblocks."),
        width=width,
        mlp=checkpoint.shape("visual.transformer.resblocks.0.mlp.c_fc.weight", 2)[0],
        heads=infer_heads(checkpoint, width, heads),
        patch=patch,
        image=image,
        channels=channels,
        classes=0,
        patch_bias=False,
        ln_pre=not vision.get("no_ln_pre", False),
        projection=checkpoint.shape("visual.proj", 2)[1],
        gelu=infer_gelu(checkpoint, _gelu(model, vision, openai=openai)),
        eps=(vision.get("norm_kwargs") or {}).get("eps", 1e-5),
    )


def _gelu(model: Mapping[str, Any], vision: Mapping[str, Any], *, openai: bool) -> Gelu | None:
    if openai or model.get("quick_gelu"):
        return "quick"
    if not model:
        return None
    return "tanh" if (vision.get("act_kwargs") or {}).get("approximate") == "tanh" else "exact"


def _refuse_unknown(checkpoint: Checkpoint, vision: Mapping[str, Any]) -> None:
    for name, value in vision.items():
        if name not in _UNDERSTOOD and value not in (None, False, 0, _OFF.get(name)):
            raise WeightsError(
                f"{checkpoint.origin} has {name} = {value!r} in its vision_cfg, which vitkit's model does not have."
            )


def _trunk(checkpoint: Checkpoint, model: Mapping[str, Any]) -> Checkpoint:
    """Return timm's model inside OpenCLIP's; what is beside it keeps its name, and is refused by it."""
    vision = model.get("vision_cfg", {})
    name = vision.get("timm_model_name")
    return replace(
        checkpoint,
        tensors={name.removeprefix(_TRUNK): tensor for name, tensor in checkpoint.tensors.items()},
        config={"architecture": name, "num_classes": 0} if name else {},
    )


def _preprocessing(
    checkpoint: Checkpoint, settings: _PreprocessSettings | None, weights: LoadedWeights
) -> Preprocessing:
    """Return what OpenCLIP does by its configuration; a file alone means OpenAI's preprocessing, or SigLIP's."""
    siglip = isinstance(weights.config, ViTConfig) and weights.config.pool == "attention"
    by_default = {"mean": _HALF, "std": _HALF, "resize_mode": "squash"} if siglip else {}
    chosen: Mapping[str, Any] = by_default if settings is None else settings
    mode, filter = chosen.get("resize_mode") or "shortest", chosen.get("interpolation") or "bicubic"
    for name, value, known in (("resize_mode", mode, _RESIZE), ("interpolation", filter, _INTERPOLATION)):
        if value not in known:
            raise WeightsError(
                f"the preprocess_cfg of {checkpoint.origin} has {name} = {value!r}.", known=", ".join(known)
            )
    return Preprocessing(
        resize=_RESIZE[mode],
        interpolation=_INTERPOLATION[filter],
        mean=tuple(chosen.get("mean") or _MEAN),
        std=tuple(chosen.get("std") or _STD),
        rounding="timm",
        origin="" if settings is not None else f"{'SigLIP' if siglip else 'OpenAI'}'s, the file does not say",
    )
