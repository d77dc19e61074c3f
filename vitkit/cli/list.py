"""The verb `list`: list models, recipes or settings."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from vitkit.cli.options import Json, option, print_json
from vitkit.errors import ConfigError, did_you_mean
from vitkit.messages import WARNING, say

if TYPE_CHECKING:
    from vitkit.config.listing import ListedSetting
    from vitkit.config.recipe_listing import ListedRecipe

WIDTH = 100  # columns of text


def list(
    what: Annotated[
        Positional[Literal["models", "recipes", "settings"]],
        arg(metavar="models|recipes|settings", help="what to list"),
    ],
    pattern: Annotated[
        Positional[str],
        option("only those that contain this text; of a recipe by its name, the settings as TOML", "[PATTERN]"),
    ] = "",
    json: Json = False,
) -> None:
    """List models, recipes or settings, with the meaning of each; of one recipe, its settings as TOML.

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
    from vitkit.model.variants import NAMED
    from vitkit.weights.public import PUBLIC

    names = [name for name in NAMED if pattern.lower() in name.lower()]
    _check_any(names, "model", pattern, NAMED)
    if json:
        rows = [
            {
                "name": name,
                "weights": [public.source for public in PUBLIC.get(name, ())],
                "trained_by": [public.trained_by for public in PUBLIC.get(name, ())],
            }
            for name in names
        ]
        print_json("list", {"models": rows})
        return
    for name in names:
        sources = [f"{public.source} ({public.trained_by}, {public.trained_on})" for public in PUBLIC.get(name, ())]
        print(f"{name:<9} {', '.join(sources) or 'no public weights'}")
    print("\nvitkit cost MODEL … has their sizes")


def _check_any(names: Collection[str], kind: str, pattern: str, known: Collection[str]) -> None:
    if not names:
        raise ConfigError(f"no {kind} contains {pattern!r}{did_you_mean(pattern, known)}", try_=f"vitkit list {kind}s")
