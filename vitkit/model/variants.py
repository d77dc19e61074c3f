"""Model names such as "B/16", "R50+L/32" and "R152x2", and the configurations that they stand for.

"S/16" is a size and a patch side. "R50+B/16" is a ResNet stem, a size and the total stride. "R50x2" is a BiT ResNet,
twice as wide. "BoT50" and the like are post-activation ResNets with attention in place of 3x3 convolutions.
"iGPT-S/32" is a size of iGPT and the side of its images, a token a pixel. "Ti/16+linear" and "Ti/16+queries" are a
Vision Transformer with a head for segmentation.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from vitkit.errors import ConfigError, did_you_mean
from vitkit.model.config import ModelConfig, ResNetConfig, ViTConfig, check_options, parse_size
from vitkit.model.conv_config import ConvConfig
from vitkit.model.igpt_config import IGPTConfig
from vitkit.model.options import INSIDE_ATTENTION
from vitkit.model.segmenter_config import SegmenterConfig, segmentation_backbone
from vitkit.model.sizes import ATTENTION_RESNETS, IGPT_SIZES, RESNETS, SIZES, STEMS, Size
from vitkit.model.spatial_attention import SpatialAttention
from vitkit.stored_json import conform

# What the paper, AugReg, Google's code and the public weights name; other patches and combinations work too.
NAMED = tuple(
    """
    Ti/16 S/32 S/16 S+/16 B/32 B/16 B/8 L/32 L/16 L/14 H/14 H+/16 So400m/14 g/14 giant2/14 g-opt/16 G/14 7B/16 mu/4
    R+Ti/16 R26+S/32 R26+B/32 R50+B/16 R50+B/32 R50+L/16 R50+L/32 R50x1 R50x2 R101x1 R152x1 R152x2 R200x3
    iGPT-S/32 iGPT-M/32 iGPT-L/32 iGPT-L/48
    BoT50 AA-R50 SASA-R50 Axial-R50
    """.split()
)

_VIT = re.compile(r"(?:(?P<stem>R\d*)\+)?(?P<size>[A-Za-z0-9-]+\+?)/(?P<number>[1-9]\d*)")
_SEGMENTER = re.compile(r"(?P<backbone>.+/\d+)\+(?P<head>linear|queries)")
_RESNET = re.compile(r"R(?P<depth>\d+)x(?P<width>[1-9]\d?)")
_ATTENTION_RESNET = re.compile(r"(?P<prefix>BoT|[A-Za-z]+-R)(?P<depth>\d+)")


def configure(name: str, **options: Any) -> ModelConfig:
    """Return the configuration of a named model, with any field of its kind of config overridden.

    Without an `image`, the size is the one that the name has, or the default of its kind.
    """
    if options.get("image") is None:
        options.pop("image", None)
    else:
        options["image"] = parse_size(options["image"])
    for option in ("representation", "projection", "layer_scale"):
        if options.get(option) is False:  # as settings write none
            del options[option]
    if segmenter := _SEGMENTER.fullmatch(name):
        return _segmenter(name, segmenter["backbone"], {"head": segmenter["head"], **options})
    if body := _resnet_body(name):
        check_options(f"{name}, a ResNet,", ResNetConfig, options)
        named = body
        return ResNetConfig(**{**options, "body": _conv(f"body of {name}", named, options.get("body", named))})
    vit = _VIT.fullmatch(name)
    if vit and vit["size"] in IGPT_SIZES and vit["stem"] is None:
        check_options(f"{name}, an iGPT,", IGPTConfig, options)
        sizes = {key: value for key, value in IGPT_SIZES[vit["size"]]._asdict().items() if key != "swiglu"}
        side = int(vit["number"])
        return IGPTConfig(**{**sizes, "image": (side, side), **options})
    if vit and vit["size"] in SIZES:
        check_options(name, ViTConfig, options)
        if vit["stem"] is None:
            return _vit(SIZES[vit["size"]], {"patch": int(vit["number"]), **options})
        stem = STEMS.get((vit["stem"], int(vit["number"])))
        if stem:
            named = ConvConfig(layers=stem.layers)
            options["stem"] = _conv(f"stem of {name}", named, options.get("stem", named))
            return _vit(SIZES[vit["size"]], {"patch": stem.patch, **options})
    raise _unknown(name)


def side_of_name(name: str) -> int | None:
    """Return the side of the images that a name is for, such as iGPT-S/32; None where a model takes others as well."""
    named = _VIT.fullmatch(name)
    return int(named["number"]) if named and named["size"] in IGPT_SIZES else None


def name_of(config: ModelConfig) -> str | None:
    """Return the name under which `configure` gives these sizes, or None for custom sizes."""
    if isinstance(config, ResNetConfig):
        return _resnet_name(config.body)
    if isinstance(config, SegmenterConfig):
        backbone = name_of(config.backbone)
        return backbone and f"{backbone}+{config.head}"
    own = (config.depth, config.width, config.mlp, config.heads)
    if isinstance(config, IGPTConfig):
        names = (name for name, size in IGPT_SIZES.items() if own == size[:4] and config.image[0] == config.image[1])
        return next((f"{name}/{config.image[0]}" for name in names), None)
    # first the size with this MLP, S+ and not S; a size with another MLP than the table's keeps its name
    by_mlp = sorted(SIZES.items(), key=lambda item: item[1].swiglu != config.swiglu)
    for size_name, size in by_mlp:
        if own == size[:4]:
            if config.stem is None:
                return f"{size_name}/{config.patch}"
            for (stem_name, number), stem in STEMS.items():
                if (config.stem.layers, config.patch) == stem and config.stem.width == 64:
                    return f"{stem_name}+{size_name}/{number}"
    return None


def split_head(name: str) -> tuple[str, str]:
    """Return the backbone and the head of a segmenter's name: ("Ti/16", "linear"); "" for other models."""
    named = _SEGMENTER.fullmatch(name)
    return (named["backbone"], named["head"]) if named else (name, "")


def _segmenter(name: str, backbone: str, options: dict[str, Any]) -> SegmenterConfig:
    own = {field.name: options.pop(field.name) for field in fields(SegmenterConfig) if field.name in options}
    config = configure(backbone, **options)
    if not isinstance(config, ViTConfig):
        raise ConfigError(f"there is no model {name!r}: {backbone} has no patch tokens", try_=f"Ti/16+{own['head']}")
    return SegmenterConfig(**{**own, "backbone": segmentation_backbone(config)})


def _resnet_body(name: str) -> ConvConfig | None:
    """Return the body of a named ResNet, or None if the name is not that of one."""
    plain, attended = _RESNET.fullmatch(name), _ATTENTION_RESNET.fullmatch(name)
    named = plain or attended
    layers = RESNETS.get(int(named["depth"])) if named else None
    if layers and plain:
        return ConvConfig.bit(layers, 64 * int(plain["width"]))
    for prefix, attention in ATTENTION_RESNETS:
        if layers and attended and attended["prefix"] == prefix:
            return ConvConfig(layers=layers, attention=attention)
    return None


def _resnet_name(body: ConvConfig) -> str | None:
    for depth, layers in RESNETS.items():
        if body.layers != layers:
            continue
        if body.attention is None and body.preactivation and body.width % 64 == 0:
            return f"R{depth}x{body.width // 64}"
        for prefix, attention in ATTENTION_RESNETS:
            if (body.attention, body.preactivation, body.width) == (attention, False, 64):
                return f"{prefix}{depth}"
    return None


def heads_by_width(width: int, *, swiglu: bool = False) -> int | None:
    """Return the number of heads that the table has for a width and a kind of MLP; weights do not record it."""
    return next((size.heads for size in SIZES.values() if (size.width, size.swiglu) == (width, swiglu)), None)


def _vit(size: Size, options: dict[str, Any]) -> ViTConfig:
    options.setdefault("class_token", options.get("pool", "token") in ("token", "token-gap"))
    options.setdefault("inject", "every" if options.get("positions") in INSIDE_ATTENTION else "stem")
    return ViTConfig(**{**size._asdict(), **options})


def _conv(what: str, named: ConvConfig, option: Any) -> Any:
    """Return the ResNet part that an option gives: all of it, or a table of what differs from the named one."""
    if not isinstance(option, Mapping):
        return option
    check_options(what, ConvConfig, option)
    merged = {**asdict(named), **option}
    if "attention" in option:
        merged["attention"] = _attention(f"attention in the {what}", named.attention, option["attention"])
    return conform(merged, ConvConfig, what, error=ConfigError)


def _attention(what: str, named: SpatialAttention | None, option: Any) -> dict[str, Any] | None:
    """Return all options of the attention in a ResNet, from its kind or from a table of what differs."""
    if option is None or option is False:  # as settings write none
        return None
    table = {"kind": option} if isinstance(option, str) else option
    if not isinstance(table, Mapping):
        raise ConfigError(f"{what} is {option!r}", expected="a kind, or a table of options")
    check_options(what, SpatialAttention, table)
    by_kind = {attention.kind: attention for _, attention in ATTENTION_RESNETS}
    kind = table.get("kind", named.kind if named else None)
    if kind not in by_kind:
        raise ConfigError(f"{what} is of the kind {kind!r}", choose_from=", ".join(by_kind))
    start = named if named and named.kind == kind else by_kind[kind]
    return {**asdict(start), **table}


def _unknown(name: str) -> ConfigError:
    sizes = [size for size in SIZES if size != "mu"]
    return ConfigError(
        f"there is no model {name!r}{did_you_mean(name, NAMED)}",
        pure=f"{' '.join(sizes)} and any patch side: B/16, B/8, S/32 (mu/4 is a toy)",
        hybrid=" ".join(f"{stem}+SIZE/{number}" for stem, number in STEMS),
        ResNet=" ".join(f"R{depth}xWIDTH" for depth in RESNETS),
        ResNet_with_attention=" ".join(f"{row.prefix}50" for row in ATTENTION_RESNETS),
        segmenter="a pure ViT or a hybrid and its head: Ti/16+linear, Ti/16+queries",
        iGPT=f"{' '.join(size for size in IGPT_SIZES if size != 'iGPT-mu')} and the side of its images: iGPT-S/32",
    )
