"""Model names such as "B/16", "R50+L/32" and "R152x2", and the only size table of the project.

"S/16" is a size and a patch side. "R50+B/16" is a ResNet stem, a size and the total stride. "R50x2" is a BiT ResNet,
twice as wide.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from vitkit.errors import ConfigError, did_you_mean
from vitkit.model.config import ConvConfig, ModelConfig, ResNetConfig, ViTConfig, check_options, parse_size
from vitkit.model.options import INSIDE_ATTENTION
from vitkit.stored_json import conform


class Size(NamedTuple):
    depth: int
    width: int
    mlp: int
    heads: int
    swiglu: bool = False


# fmt: off
SIZES = {  #            depth width  mlp  heads swiglu
    "mu":     Size( 2,   32,  128,   2),    # a toy, for tests and first steps
    "Ti":     Size(12,  192,  768,   3),    # DeiT / AugReg
    "S":      Size(12,  384, 1536,   6),
    "B":      Size(12,  768, 3072,  12),    # paper, Table 1
    "L":      Size(24, 1024, 4096,  16),
    "H":      Size(32, 1280, 5120,  16),
    "g":      Size(40, 1408, 6144,  16),    # Zhai et al., Scaling Vision Transformers; I-JEPA's and OpenCLIP's, too
    "G":      Size(48, 1664, 8192,  16),    # OpenCLIP's bigG, too
    "So400m": Size(27, 1152, 4304,  16),    # Alabdulmohsin et al., Getting ViT in Shape; SigLIP
    "g-opt":  Size(40, 1536, 6144,  16),    # SigLIP 2
    "giant2": Size(40, 1536, 4096,  24, True),  # DINOv2's g
    "S+":     Size(12,  384, 1536,   6, True),  # DINOv3 from here
    "H+":     Size(32, 1280, 5120,  20, True),
    "7B":     Size(40, 4096, 8192,  32, True),
}
# fmt: on


class Stem(NamedTuple):
    layers: tuple[int, ...]
    patch: int


# (ResNet, number in the name) → units per stage, patch side on the feature map. The number is the total stride, except
# in R+Ti/16: its stem is the ResNet's root alone, stride 4, under 8-pixel patches, so it is really /32 (Google's code).
STEMS = {
    ("R", 16): Stem((), 8),
    ("R26", 32): Stem((2, 2, 2, 2), 1),
    ("R50", 16): Stem((3, 4, 9), 1),  # stage 4 dropped, its units moved to stage 3
    ("R50", 32): Stem((3, 4, 6, 3), 1),
}

RESNETS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}

# What the paper, AugReg, Google's code and the public weights name; other patches and combinations work too.
NAMED = tuple(
    """
    Ti/16 S/32 S/16 S+/16 B/32 B/16 B/8 L/32 L/16 L/14 H/14 H+/16 So400m/14 g/14 giant2/14 g-opt/16 G/14 7B/16 mu/4
    R+Ti/16 R26+S/32 R26+B/32 R50+B/16 R50+B/32 R50+L/16 R50+L/32 R50x1 R50x2 R101x1 R152x1 R152x2 R200x3
    """.split()
)

_VIT = re.compile(r"(?:(?P<stem>R\d*)\+)?(?P<size>[A-Za-z0-9-]+\+?)/(?P<number>[1-9]\d*)")
_RESNET = re.compile(r"R(?P<depth>\d+)x(?P<width>[1-9]\d?)")


def configure(name: str, **options: Any) -> ModelConfig:
    """Return the configuration of a named model, with any field of ViTConfig or ResNetConfig overridden."""
    if "image" in options:
        options["image"] = parse_size(options["image"])
    for option in ("representation", "projection", "layer_scale"):
        if options.get(option) is False:  # as settings write none
            del options[option]
    resnet = _RESNET.fullmatch(name)
    if resnet and int(resnet["depth"]) in RESNETS:
        check_options(f"{name}, a ResNet,", ResNetConfig, options)
        named = ConvConfig.bit(RESNETS[int(resnet["depth"])], 64 * int(resnet["width"]))
        return ResNetConfig(**{**options, "body": _conv(f"body of {name}", named, options.get("body", named))})
    vit = _VIT.fullmatch(name)
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


def name_of(config: ModelConfig) -> str | None:
    """Return the name under which `configure` gives these sizes, or None for custom sizes."""
    if isinstance(config, ResNetConfig):
        for depth, layers in RESNETS.items():
            if config.body.layers == layers and config.body.preactivation and config.body.width % 64 == 0:
                return f"R{depth}x{config.body.width // 64}"
        return None
    own = (config.depth, config.width, config.mlp, config.heads)
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
    return conform({**asdict(named), **option}, ConvConfig, what, error=ConfigError)


def _unknown(name: str) -> ConfigError:
    sizes = [size for size in SIZES if size != "mu"]
    return ConfigError(
        f"there is no model {name!r}{did_you_mean(name, NAMED)}",
        pure=f"{' '.join(sizes)} and any patch side: B/16, B/8, S/32 (mu/4 is a toy)",
        hybrid=" ".join(f"{stem}+SIZE/{number}" for stem, number in STEMS),
        ResNet=" ".join(f"R{depth}xWIDTH" for depth in RESNETS),
    )
