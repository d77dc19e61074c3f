"""The options of a Vision Transformer: the values that each can have, and the combinations that mean nothing."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

from vitkit.errors import ConfigError

Positions = Literal[
    "none", "1d", "2d", "relative", "relative-2d", "quadratic", "quadratic-general", "sincos", "sincos1d"
]
BETWEEN_PATCHES = ("relative-2d", "quadratic", "quadratic-general")  # of two patches, by rows and columns apart
INSIDE_ATTENTION = ("relative", *BETWEEN_PATCHES)  # added to the scores, not to the tokens
# what loading does with learned positions: interpolate in 2-D (section 3.2), stretch in 1-D, keep, or re-initialise
PositionTransfer = Literal["interpolate", "stretch", "keep", "fresh"]
Injection = Literal["stem", "every", "shared"]
# coordinates of rotary positions: from -1 to 1 over the image (DINOv3), or the indices of row and column
Rotary = Literal["none", "centred", "index"]
# the pairs that are rotated: i with i + d/2 (rotate-half), or 2i with 2i + 1
RotaryLayout = Literal["half", "interleaved"]
Pool = Literal["token", "gap", "gap-norm", "token-gap", "attention", "seeds"]
# DeiT's distillation token: none, read beside the class token by one linear layer, or with a head of its own
Distillation = Literal["none", "token", "heads"]
Norm = Literal["pre", "post"]
Gelu = Literal["tanh", "exact", "quick"]
EpsilonOn = Literal["std", "variance"]

GROUPS = 32  # in every group normalisation
# Far above every model that was ever built: a size from a damaged file shall not take all memory, nor overflow a shape.
MOST = {
    "depth": 4096,
    "patch": 2**13,
    "channels": 2**12,
    "classes": 2**24,
    "image": 2**20,
    "registers": 2**12,
    "induced": 2**12,
    "seeds": 2**12,
}
MOST_WIDTH = 2**20  # of width, mlp, heads, representation and projection

_CHOICES: dict[str, Any] = {
    "positions": Positions,
    "inject": Injection,
    "rotary": Rotary,
    "rotary_layout": RotaryLayout,
    "pool": Pool,
    "distillation": Distillation,
    "norm": Norm,
    "gelu": Gelu,
}
_SWITCHES = (
    "patch_bias class_token class_position ln_pre axial query_bias key_bias value_bias swiglu normalise content".split()
)


def check_values(config: Any) -> None:
    """Raise an error for an option of a ViTConfig that has a value of no meaning."""
    for name, kind in _CHOICES.items():
        if getattr(config, name) not in get_args(kind):
            raise ConfigError(f"{name}={getattr(config, name)!r} is not known", choose_from=", ".join(get_args(kind)))
    for name in ("depth", "width", "mlp", "heads", "patch", "channels", "seeds"):
        check_count(name, getattr(config, name), least=1)
    for name in ("classes", "registers", "induced"):
        check_count(name, getattr(config, name), least=0)
    for name in ("representation", "projection"):
        if getattr(config, name) is not None:
            check_count(name, getattr(config, name), least=1)
    for name in _SWITCHES:
        if not isinstance(getattr(config, name), bool):
            raise ConfigError(f"{name}={getattr(config, name)!r} must be true or false")
    for name in ("dropout", "stochastic_depth"):
        if not (_is_number(getattr(config, name)) and 0 <= getattr(config, name) < 1):
            raise ConfigError(f"{name}={getattr(config, name)!r} is a probability: 0 or more, under 1")
    for name in ("eps", "rotary_base", "layer_scale"):
        value = getattr(config, name)
        if not ((_is_number(value) and 0 < value < math.inf) or (name == "layer_scale" and value is None)):
            raise ConfigError(f"{name}={value!r} must be a number above 0")
    shared = config.content or config.pool in ("attention", "seeds")  # else every head mixes whole tokens
    if shared and config.width % config.heads:
        raise ConfigError(
            f"a width of {config.width} cannot be shared by {config.heads} heads; heads must divide the width"
        )


def check_combinations(config: Any) -> None:
    """Raise an error for options of a ViTConfig that contradict each other, or of which one would have no effect."""
    _check_special_tokens(config)
    _check_positions(config)
    _check_rotary(config)
    _check_content(config)
    _check_sets(config)
    if config.axial and config.special_tokens:
        raise ConfigError(
            "axial attention runs along rows and columns of patches, a class token is in neither"
            if config.class_token
            else "axial attention runs along rows and columns of patches, registers are in neither",
            try_="pool='gap', class_token=False" if config.class_token else "registers=0",
        )
    if config.norm == "post" and config.pool == "gap-norm":
        raise ConfigError("post-norm blocks end normalised; pool='gap-norm' would normalise twice", try_="pool='gap'")
    if config.normalise and not config.classes:
        raise ConfigError(
            "normalise=True is about the input of the logits, and classes=0 has none", try_="normalise=False"
        )
    if config.normalise and config.distillation == "heads":
        raise ConfigError(
            "normalise=True: the two heads of distillation='heads' read the tokens themselves",
            try_="normalise=False, or distillation='token'",
        )
    if config.swiglu and config.gelu != "tanh":
        raise ConfigError(
            f"gelu={config.gelu!r} has no effect with swiglu=True: the gate's activation is SiLU",
            try_="the default, gelu='tanh'",
        )


def _check_special_tokens(config: Any) -> None:
    if config.pool in ("token", "token-gap") and not config.class_token:
        raise ConfigError(
            f"pool={config.pool!r} reads the class token, which class_token=False leaves out",
            try_="pool='gap', the paper's alternative (D.3)",
        )
    if config.distillation != "none" and config.pool != "token":
        raise ConfigError(
            f"the distillation token is read beside the class token, and pool={config.pool!r} is not the class token",
            try_="pool='token', or distillation='none'",
        )
    if config.distillation == "heads":
        for name in ("representation", "projection"):
            if getattr(config, name) is not None:
                raise ConfigError(
                    f"{name}={getattr(config, name)}: the two heads of distillation='heads' read the tokens themselves",
                    try_=f"no {name}, or distillation='token'",
                )
    if not config.class_position and not config.class_token:
        raise ConfigError("class_position=False is about a class token, and this model has none")
    if not config.class_position and config.positions in ("none", *INSIDE_ATTENTION):
        raise ConfigError(
            f"class_position=False is about positions added to tokens; positions={config.positions!r} adds none"
        )


def _check_positions(config: Any) -> None:
    if config.positions in INSIDE_ATTENTION and config.inject == "stem":
        raise ConfigError(
            f"{config.positions} positions live inside attention, there is nothing to add at the stem",
            try_="inject='every' (its own offsets in each layer) or 'shared'",
        )
    if config.positions == "none" and config.inject != "stem":
        raise ConfigError(f"inject={config.inject!r} has nothing to inject with positions='none'")
    if config.positions in ("sincos", "sincos1d") and config.inject == "every":
        raise ConfigError("sin-cos tables are fixed, so each layer's own would be the same", try_="inject='shared'")
    if config.positions == "2d" and config.width % 2:
        raise ConfigError(f"2-D positions give half the width to rows and half to columns; {config.width} is odd")
    if config.positions == "sincos1d" and config.width % 2:
        raise ConfigError(f"1-D sin-cos positions need an even width; {config.width} is odd")
    if config.positions == "sincos" and config.width % 4:
        raise ConfigError(f"sin-cos positions need a width divisible by 4; {config.width} is not")
    if config.positions in BETWEEN_PATCHES and config.special_tokens:
        raise ConfigError(
            f"{config.positions} positions are between patches, and class token and registers are in no place",
            try_="pool='gap', class_token=False, registers=0",
        )
    if config.positions == "relative-2d" and config.content and config.width // config.heads % 2:
        raise ConfigError(
            "one half of a head goes with rows, one with columns: positions='relative-2d' needs an even width per head",
            try_="another number of heads",
        )
    if config.positions in INSIDE_ATTENTION:
        for name, none in (("axial", False), ("distillation", "none"), ("registers", 0), ("rotary", "none")):
            if getattr(config, name) != none:
                what = "axial attention" if name == "axial" else f"{name}={getattr(config, name)!r}"
                raise ConfigError(f"{what} with {config.positions} positions is not built", try_="positions='1d'")


def _check_rotary(config: Any) -> None:
    if config.rotary == "none":
        for name, default in (("rotary_base", 100.0), ("rotary_layout", "half")):
            if getattr(config, name) != default:
                raise ConfigError(
                    f"{name}={getattr(config, name)!r} has no effect with rotary='none'",
                    try_="rotary='centred' or 'index'",
                )
        return
    if config.axial:
        raise ConfigError("axial attention with rotary positions is not built", try_="rotary='none'")
    if (depth := config.width // config.heads) % 4:
        raise ConfigError(
            f"rotary positions turn pairs of numbers, half of them by row and half by column, and {depth} numbers per "
            "head are no multiple of 4",
            try_="another number of heads",
        )


def _check_content(config: Any) -> None:
    """Attention by positions alone needs positions between patches and has no query, key or value of a head."""
    if config.content:
        return
    if config.positions not in BETWEEN_PATCHES:
        raise ConfigError(
            f"content=False leaves attention to the positions, and positions={config.positions!r} gives it none",
            try_="positions='quadratic', 'quadratic-general' or 'relative-2d'",
        )
    _check_biases(config, "content=False has neither queries nor keys")


def _check_sets(config: Any) -> None:
    """The options of the Set Transformer: inducing points take the place of attention between all pairs of tokens."""
    if config.seeds != 1 and config.pool != "seeds":
        raise ConfigError(f"seeds={config.seeds} has no effect with pool={config.pool!r}", try_="pool='seeds'")
    if not config.induced:
        return
    if config.positions in INSIDE_ATTENTION or config.rotary != "none" or config.axial:
        raise ConfigError(
            f"induced={config.induced}: tokens attend to inducing points, which have no place in the image; positions "
            "inside attention and axial attention do not apply",
            try_="positions='none' or '1d', rotary='none', axial=False",
        )
    _check_biases(config, f"induced={config.induced} has projections of its own")


def _check_biases(config: Any, reason: str) -> None:
    for name in ("query_bias", "key_bias", "value_bias"):
        if not getattr(config, name):
            raise ConfigError(f"{reason}: {name}=False has no effect", try_=f"{name}=True")


def check_count(name: str, value: object, *, least: int) -> None:
    """Raise an error for a value that is no whole number, less than `least` or more than any model has."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}={value!r} must be a whole number, {least} or more")
    if value > (most := MOST.get(name, MOST_WIDTH)):
        raise ConfigError(f"{name}={value} is more than a model can have, {most:,}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
