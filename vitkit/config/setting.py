"""A setting: a dataclass field that carries its meaning and its range, for checks, help and documentation alike."""

from dataclasses import dataclass, field, fields
from typing import Any

from vitkit.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The numbers that a setting may have; infinity and NaN are never among them."""

    more_than: float | None = None
    at_least: float | None = None
    less_than: float | None = None
    at_most: float | None = None

    def __contains__(self, value: float) -> bool:
        return (
            abs(value) < float("inf")
            and (self.more_than is None or value > self.more_than)
            and (self.at_least is None or value >= self.at_least)
            and (self.less_than is None or value < self.less_than)
            and (self.at_most is None or value <= self.at_most)
        )

    def __str__(self) -> str:
        words = {"more than {}": self.more_than, "{} or more": self.at_least, "under {}": self.less_than}
        words["at most {}"] = self.at_most
        return " and ".join(text.format(_number(bound)) for text, bound in words.items() if bound is not None)


def _number(value: float) -> str:
    """Return a bound as people write it: 0.5, 30, or 2**63."""
    large = isinstance(value, int) and value.bit_count() == 1 and value > 10**6
    return f"2**{int(value).bit_length() - 1}" if large else f"{value:g}"


POSITIVE = Bounds(more_than=0)
ZERO_OR_MORE = Bounds(at_least=0)
SHARE = Bounds(at_least=0, less_than=1)  # none is possible
PART = Bounds(more_than=0, less_than=1)  # neither none nor all


@dataclass(frozen=True, kw_only=True)
class About:
    """The meaning and the range of a setting, which its type and default do not tell."""

    meaning: str
    bounds: tuple[Bounds, ...] = ()  # one for all numbers of the setting, or one for each of them
    ascending: bool = False  # its numbers are the least and the greatest
    unset: str = ""  # what None stands for

    def range(self) -> str:
        """Return the allowed values in words, or "" where any value of the type is allowed."""
        if len(self.bounds) > 1:
            return f"[{', '.join(map(str, self.bounds))}]"
        words = str(self.bounds[0]) if self.bounds else ""
        return f"[least, greatest], each {words}" if self.ascending else words

    def allows(self, value: Any) -> bool:
        """Return whether the value, a number or a sequence of numbers, is within the bounds."""
        if isinstance(value, (tuple, list)):
            each = self.bounds if len(self.bounds) > 1 else self.bounds * len(value)
            inside = all(number in bounds for number, bounds in zip(value, each, strict=True))
            return inside and (not self.ascending or list(value) == sorted(value))
        return value in self.bounds[0]


def setting(default: Any, meaning: str, *bounds: Bounds, ascending: bool = False, unset: str = "") -> Any:
    """Return a dataclass field with a default (a type is called for one), a meaning and a range.

    The meaning is a phrase for `vitkit list settings`; `unset` says what the default None stands for. The class calls
    `check_ranges` when it is made.
    """
    about = About(meaning=meaning, bounds=bounds, ascending=ascending, unset=unset)
    if isinstance(default, type):
        return field(default_factory=default, metadata={"about": about})
    return field(default=default, metadata={"about": about})


def check_ranges(settings: Any, table: str = "") -> None:
    """Raise an error for the first setting of a dataclass that is out of its range; `table` is where it stands."""
    for item in fields(settings):
        about, value = item.metadata["about"], getattr(settings, item.name)
        if value is None or not about.bounds or about.allows(value):
            continue
        name = f"{table}.{item.name}" if table else item.name
        if isinstance(value, (tuple, list)) and len(about.bounds) == 1 and not about.ascending:
            value = next(number for number in value if not about.allows(number))
        shown = list(value) if isinstance(value, tuple) else value
        raise ConfigError(f"{name} = {shown}: {about.range()} is needed", meaning=about.meaning)
