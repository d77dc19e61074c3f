"""The verb `list`: list models, recipes or settings."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from vitkit.cli.options import Json, option, print_json
from vitkit.messages import WARNING, say

if TYPE_CHECKING:
    from vitkit.config.listing import ListedSetting
    from vitkit.config.model_listing import ListedModel
    from vitkit.config.recipe_listing import ListedRecipe

WIDTH = 100  # columns of text


def list(
    what: Annotated[
        Positional[Literal["models", "recipes", "settings"]],
        arg(metavar="models|recipes|settings", help="what to list"),
    ],
    pattern: Annotated[
        Positional[str],
        option(
            "only those that contain this text; of a model by its name, its details; of a recipe, its TOML", "[PATTERN]"
        ),
    ] = "",
    json: Json = False,
) -> None:
    """List public models, recipes or settings, with the meaning of each; of one, the details.

    vitkit list models dinov2

    vitkit list settings mixup

    vitkit fit photos/ --set augment.mixup=0.2

    vitkit list recipes pets_transfer
    """
    {"models": _models, "recipes": _recipes, "settings": _settings}[what](pattern, json)


def _settings(pattern: str, json: bool) -> None:
    from dataclasses import asdict

    from vitkit.config.listing import list_settings

    settings = list_settings(pattern)
    if json:
        print_json("list", {"settings": [asdict(setting) for setting in settings]})
        return
    print("\n\n".join("\n".join(_setting_lines(setting)) for setting in settings))
    print("\nvitkit fit DATA --set NAME=VALUE …, or in the --config FILE.toml")


def _setting_lines(setting: ListedSetting) -> Iterator[str]:
    from vitkit.config.listing import recipes_by_value

    yield setting.name
    yield from _wrapped("meaning", setting.meaning)
    yield from _wrapped("default", setting.default)
    if setting.range:
        yield from _wrapped("range", setting.range)
    if setting.recipes:
        yield from _wrapped("recipes", recipes_by_value(setting))


def _wrapped(name: str, text: str) -> Iterator[str]:
    yield from textwrap.wrap(
        text, WIDTH, initial_indent=f"  {name:<9}", subsequent_indent=" " * 11, break_long_words=False
    )


def _recipes(pattern: str, json: bool) -> None:
    from vitkit.config.recipe_listing import as_toml, list_recipes
    from vitkit.config.recipes import RECIPES, RENAMED, describe_renamed

    recipes = list_recipes(pattern)
    if json:
        print_json("list", {"recipes": [recipe.to_json() for recipe in recipes]})
        return
    if pattern in RENAMED:
        say(WARNING, describe_renamed(pattern), file=sys.stderr)
    if len(recipes) == 1 and (pattern in RECIPES or pattern in RENAMED):
        print("\n".join(f"# {line}" for line in _recipe_lines(recipes[0])))
        print(as_toml(recipes[0]), end="")
        return
    print("\n\n".join("\n".join(_recipe_lines(recipe)) for recipe in recipes))
    print("\nvitkit fit DATA --recipe NAME; vitkit list recipes NAME > FILE.toml, to change it: --config FILE.toml")


def _recipe_lines(recipe: ListedRecipe) -> Iterator[str]:
    yield recipe.name
    yield from textwrap.wrap(recipe.meaning, WIDTH, initial_indent="  ", subsequent_indent="  ")
    yield from _wrapped("command", recipe.command)
    if recipe.remark:
        yield from _wrapped("note", recipe.remark)
    yield from _wrapped("holds", recipe.holds)
    if recipe.rows:
        yield from _wrapped("rows", "; ".join(f"--model {model} {text}" for model, text in recipe.rows.items()))
    yield from _wrapped("costs", str(recipe.cost))
    for number, figure in enumerate(recipe.figures):
        yield from _wrapped("" if number else "expect", str(figure))
    if not recipe.figures:
        yield from _wrapped("expect", "not measured")


def _models(pattern: str, json: bool) -> None:
    from vitkit.config.model_listing import list_models, untrained_variants

    models, untrained = list_models(pattern), untrained_variants(pattern)
    if json:
        print_json("list", {"models": [model.to_json() for model in models], "untrained": untrained})
        return
    if len(models) == 1 and not untrained:
        print("\n".join(_model_lines(models[0])))
        return
    for model in models:
        print(_model_row(model))
    if untrained:
        print(f"\nwithout public weights: {', '.join(untrained)}")
    print("\nvitkit list models NAME has the details of one; vitkit cost MODEL … has sizes")


def _model_row(model: ListedModel) -> str:
    checkpoint = model.checkpoint
    gated = ", gated" if checkpoint.gated else ""
    pets = f"; Pets {model.pets} (ours)" if model.pets else ""
    origin = f"{checkpoint.family} on {checkpoint.trained_on}"
    return f"{checkpoint.variant:<9} {model.name}  {checkpoint.image} px; {origin}; {checkpoint.licence}{gated}{pets}"


def _model_lines(model: ListedModel) -> Iterator[str]:
    checkpoint = model.checkpoint
    yield model.name
    yield from _wrapped("family", checkpoint.family)
    count = f", about {model.parameters / 1e6:.3g}M parameters" if model.parameters else ""
    yield from _wrapped("size", f"{checkpoint.variant}{count}")
    yield from _wrapped("image", f"{checkpoint.image} px")
    yield from _wrapped("licence", checkpoint.licence)
    yield from _wrapped("data", checkpoint.trained_on)
    yield from _wrapped("from", model.origin)
    if checkpoint.gated:
        yield from _wrapped("gated", f"accept its conditions at {model.origin}, then: hf auth login")
    if model.pets:
        yield from _wrapped(
            "Pets", f"{model.pets} % top-1 after fine-tuning at 224 px, three seeds (ours, docs/pets.md)"
        )
    else:
        yield from _wrapped("Pets", "not measured")
    if checkpoint.note:
        yield from _wrapped("note", checkpoint.note)
    yield from _wrapped("use", model.command)
    yield from _wrapped("", f"vitkit embed {model.name} IMAGES --out vectors.parquet")
