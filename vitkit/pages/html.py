"""Jinja templates → one HTML file that needs nothing else to be read: no network, no script."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from vitkit.atomic import write_text
from vitkit.text import interval, percent, valid_utf8


class HasInterval(Protocol):
    """A score with an interval."""

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


@dataclass(frozen=True)
class KeyFigure:
    """One of the few numbers at the top of a page."""

    name: str
    value: str
    note: str = ""


def write_html(path: Path, package: str, template: str, content: Mapping[str, Any]) -> Path:
    """Render a template of `package`, which may extend and import those of vitkit.pages, and write the page."""
    page = _environment(package).get_template(template).render(content)
    write_text(path, valid_utf8(page.lstrip()))
    return path


def compile_templates(package: str) -> None:
    """Compile the templates of `package` and those of vitkit.pages, so that the first page need not wait for them."""
    environment = _environment(package)
    for name in environment.list_templates(extensions=["html"]):
        environment.get_template(name)


@cache
def _environment(package: str) -> Environment:
    """Return the templates of a package; a process that writes many reports compiles each of them once."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader("vitkit.pages", ".")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": _percent,
        "whole_percent": _rounded_percent,
        "bounds": _bounds,
        "breakable": _breakable,
    }
    return environment


def no_break(text: str) -> str:
    """Return the text with no-break spaces."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _percent(share: float | None) -> str:
    return no_break(percent(share))


def _rounded_percent(share: float) -> str:
    return no_break(f"{100 * share:.0f} %")


def _bounds(estimate: HasInterval) -> str:
    return no_break(interval(estimate.low, estimate.high))


def _breakable(name: str) -> Markup:
    """Let lines break inside long names of files and classes, which have no spaces."""
    return Markup("<wbr>").join(re.split(r"(?<=[_/\\.-])(?=.)", name))
