"""The verb `list`: list models, recipes or settings."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from vitkit.cli.options import Json, option, print_json
from vitkit.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from vitkit.config.listing import ListedSetting

WIDTH = 100  # columns of text


def list(
    what: Annotated[
        Positional[Literal["models", "recipes", "settings"]],
        arg(metavar="models|recipes|settings", help="what to list"),
    ],
    pattern: Annotated[Positional[str], option("only those that contain this text", "[PATTERN]")] = "",
    json: Json = False,
) -> None:
    """List models, recipes or settings, with the meaning of each.

    vitkit list settings mixup

    vitkit fit photos/ --set augment.mixup=0.2
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
    from inspect import getdoc

    from vitkit.config.recipes import RECIPES

    texts = {name: getdoc(function) or "" for name, function in RECIPES.items()}
    names = [name for name, text in texts.items() if pattern.lower() in f"{name} {text}".lower()]
    _check_any(names, "recipe", pattern, texts)
    if json:
        print_json("list", {"recipes": [{"name": name, "meaning": texts[name]} for name in names]})
        return
    for name in names:
        print(name)
        # without a pattern the first sentence is enough; the rest is the command and what to expect of it
        text = texts[name] if pattern else texts[name].split("\n\n")[0]
        print(textwrap.indent(text, "  "))


def _models(pattern: str, json: bool) -> None:
    from vitkit.model.variants import NAMED
    from vitkit.weights.public import PUBLIC

    sources = {name: [public.source for public in PUBLIC.get(name, ())] for name in NAMED}
    names = [name for name in NAMED if pattern.lower() in name.lower()]
    _check_any(names, "model", pattern, NAMED)
    if json:
        print_json("list", {"models": [{"name": name, "weights": sources[name]} for name in names]})
        return
    for name in names:
        print(f"{name:<9} {', '.join(sources[name]) or 'no public weights'}")
    print("\nvitkit cost MODEL … has their sizes")


def _check_any(names: Collection[str], kind: str, pattern: str, known: Collection[str]) -> None:
    if not names:
        raise ConfigError(f"no {kind} contains {pattern!r}{did_you_mean(pattern, known)}", try_=f"vitkit list {kind}s")
