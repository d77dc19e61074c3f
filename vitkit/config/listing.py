"""All settings as a list: name, meaning, default, range, and the recipes that set each; for the CLI and the docs."""

from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vitkit.config.recipes import RECIPES
from vitkit.config.schema import SGD, Adam, Fit
from vitkit.config.setting import About
from vitkit.config.toml import OPTIMIZERS, optimizer_kind
from vitkit.errors import ConfigError, did_you_mean
from vitkit.model.config import ViTConfig

ARCHITECTURE = {  # the options of a ViT that are not settings of their own
    "positions": "position embeddings: learned 1-D, 2-D or relative, none (Table 8); sincos and sincos1d are fixed; "
    "relative-2d, quadratic and quadratic-general are of two patches, by rows and columns apart",
    "inject": "where positions are added: at the stem, at every layer its own, or shared by all layers (Table 8)",
    "pool": "what the head sees: the class token, global average pooling (gap; gap-norm normalises after it), both "
    "side by side (token-gap), attention pooling, or learned seeds (PMA)",
    "seeds": "number of learned seeds of pool = seeds; their vectors stand side by side",
    "content": "false: attention by positions alone, without queries and keys (Cordonnier et al.)",
    "induced": "inducing points of each layer, in the place of attention between all tokens (Set Transformer); 0: none",
    "class_token": "whether there is a class token",
    "representation": "width of the tanh layer before the logits, the paper's head of pre-training; false: none",
    "norm": "layer normalisation before each part of a block (pre, the paper's) or after it (post)",
    "axial": "axial attention, along rows and then along columns (D.6)",
    "gelu": "tanh approximation, as in Google's code, exact, as in timm and Hugging Face, or quick, as in CLIP",
    "swiglu": "a gated MLP instead of GELU (DINOv2's g, DINOv3's S+, H+ and 7B)",
    "layer_scale": "initial value of LayerScale's factors; false: none",
    "query_bias": "whether the projection to queries has a bias",
    "key_bias": "whether the projection to keys has a bias",
    "value_bias": "whether the projection to values has a bias",
    "patch_bias": "whether the patch embedding has a bias",
    "rotary": "rotary positions, by coordinates from -1 to 1 over the image (centred) or by row and column (index)",
    "rotary_base": "the longest period of rotary angles, almost, in units of the shortest",
    "rotary_layout": "the pairs that rotary positions turn: i and i + d/2 (half), or 2i and 2i + 1 (interleaved)",
    "registers": "number of register tokens",
    "class_position": "whether the class token has a position embedding",
    "distillation": "DeiT's distillation token: read beside the class token (token), or with a head of its own (heads)",
    "projection": "width of a linear layer without bias after pooling (CLIP); false: none",
    "normalise": "whether the logits see the representation at length 1, as zero-shot classifiers do",
    "ln_pre": "layer normalisation before the first block (CLIP)",
    "depth": "number of blocks",
    "width": "width of the tokens",
    "mlp": "width of the MLP",
    "heads": "attention heads",
    "patch": "side of a patch in pixels",
}
NOT_RECIPES = ("data", "out", "recipe")  # settings that no recipe decides


@dataclass(frozen=True, kw_only=True)
class ListedSetting:
    """A setting as `--set NAME=VALUE` reaches it, in words."""

    name: str  # augment.mixup
    meaning: str
    default: str
    range: str  # "0 or more", or the choices; empty where any value of the type is allowed
    recipes: dict[str, str]  # recipe → its value, where it is not the default


def list_settings(pattern: str = "") -> list[ListedSetting]:
    """Return the settings whose name or meaning contains the pattern, in any case; none is an error."""
    settings = list(_settings())
    text = pattern.lower()
    matching = [item for item in settings if text in item.name or text in item.meaning.lower()]
    if not matching:
        by_last_word = {item.name.rpartition(".")[2]: item.name for item in settings}
        nearest = did_you_mean(pattern, [item.name for item in settings], by_last_word)
        raise ConfigError(
            f"no setting has {pattern!r} in its name or meaning{nearest}",
            try_="vitkit list settings, for all of them",
        )
    return matching


def as_text(value: Any) -> str:
    """Return a value as `--set` takes it: 0.5, true, [2, 9]."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "false"  # what TOML and --set write for none
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(as_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name} = {as_text(inner)}' for name, inner in value.items())}}}"
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:_}"
    return f"{value:.4g}" if isinstance(value, float) else str(value) or '""'


def _settings() -> Iterator[ListedSetting]:
    for item in fields(Fit):
        if item.name == "optimizer":
            yield _listed(("optimizer", "kind"), "the optimizer", "sgd", " | ".join(OPTIMIZERS))
            for inner in {inner.name: (kind, inner) for kind in (Adam, SGD) for inner in fields(kind)}.values():
                yield _field(*inner, table=item.name)
        elif is_dataclass(default := _default(item)):
            for inner_field in fields(default):
                yield _field(type(default), inner_field, table=item.name)
        else:
            yield _field(Fit, item)
            if item.name == "options":
                yield from _architecture_options()


def _architecture_options() -> Iterator[ListedSetting]:
    """Yield the options of a ViT, which stand in a table of their own: `--set options.positions=2d`."""
    hints, items = get_type_hints(ViTConfig), {item.name: item for item in fields(ViTConfig)}
    for name, meaning in ARCHITECTURE.items():
        of_the_name = items[name].default is MISSING or name == "class_token"
        default = {"class_token": "true with pool = token or token-gap, else false"}.get(
            name, "that of the model's name"
        )
        words = default if of_the_name else as_text(items[name].default)
        yield ListedSetting(
            name=f"options.{name}", meaning=meaning, default=words, range=_choices(hints[name]), recipes={}
        )


def _field(kind: type, item: Field[Any], table: str = "") -> ListedSetting:
    about: About = item.metadata["about"]
    default, path = _default(item), (table, item.name) if table else (item.name,)
    words = about.unset if default is None else as_text(default)
    owners = [name for name, owner in OPTIMIZERS.items() if item.name in {inner.name for inner in fields(owner)}]
    of_some = table == "optimizer" and len(owners) < len(OPTIMIZERS)
    meaning = about.meaning + (f" ({' and '.join(owners)} only)" if of_some else "")
    return _listed(path, meaning, words, about.range() or _choices(get_type_hints(kind)[item.name]))


def _listed(path: tuple[str, ...], meaning: str, default: str, range_: str) -> ListedSetting:
    return ListedSetting(
        name=".".join(path), meaning=meaning, default=default, range=range_, recipes=_recipe_values(path)
    )


def _choices(hint: Any) -> str:
    """Return the choices of a Literal, also inside an optional type or a tuple, else ""."""
    if get_origin(hint) is Literal:
        return " | ".join(map(str, get_args(hint)))
    return "true | false" if hint is bool else next(filter(None, map(_choices, get_args(hint))), "")


def _recipe_values(path: tuple[str, ...]) -> dict[str, str]:
    """Return the values of the recipes that set this to something else than the default of its class."""
    if path[0] in NOT_RECIPES:
        return {}
    values = {}
    for name, function in RECIPES.items():
        settings: Any = function()
        for table in path[:-1]:
            settings = getattr(settings, table)
        if path == ("optimizer", "kind"):
            value, default = optimizer_kind(settings), "sgd"
        elif (item := next((item for item in fields(settings) if item.name == path[-1]), None)) is None:
            continue  # another optimizer
        else:
            value, default = getattr(settings, item.name), _default(item)
        if value != default:
            values[name] = as_text(value)
    return values


def _default(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def recipes_by_value(setting: ListedSetting) -> str:
    """Return "0.1: large_transfer; 0.2: augreg_pretrain, small_scratch", or ""."""
    by_value: dict[str, list[str]] = {}
    for recipe, value in setting.recipes.items():
        by_value.setdefault(value, []).append(recipe)
    return "; ".join(f"{value}: {', '.join(recipes)}" for value, recipes in by_value.items())
