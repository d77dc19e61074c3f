"""Errors that a user can fix: what is wrong, where, and what to do; the command line prints them and exits with 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Self

from vitkit.text import printable

TOO_MANY_FAILED = 3  # the exit code where more images failed than `max_failed` allows
CLOSE, AS_CLOSE = 0.6, 0.12  # similarity from 0 to 1 of a suggestion, and how far others may be behind the first


class VitkitError(ValueError):
    """An error with one aligned row per detail: `VitkitError("no images in photos/.", found="a.txt", try_="…")`."""

    exit_code = 2  # of the command line

    def __init__(self, what: str, **details: str | Iterable[str]) -> None:
        self.what, self.rows = what, dict[str, list[str]]()
        self.add(**details)

    @classmethod
    def around(cls, where: str, error: VitkitError) -> Self:
        """Return an error that says where another one occurred, with the details of that one."""
        around = cls(f"{where}: {error.what}")
        around.add(**error.rows)
        return around

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message and its details: the text alone would lose its lines."""
        return _restore, (type(self), self.what, self.rows)

    def add(self, **details: str | Iterable[str]) -> None:
        """Add details that a caller knows."""
        for name, text in details.items():
            self.rows[name.strip("_").replace("_", " ")] = [text] if isinstance(text, str) else list(text)
        column = max(map(len, self.rows), default=0)
        lines = [self.what]
        for name, (first, *rest) in self.rows.items():
            lines.append(f"  {name:<{column}}  {first}")
            lines += [f"  {'':<{column}}  {more}" for more in rest]
        self.args = ("\n".join(map(printable, lines)),)  # a name with a line break in it stays on its line


def _restore(kind: type[VitkitError], what: str, rows: dict[str, list[str]]) -> VitkitError:
    error = kind(what)
    error.add(**rows)
    return error


class ConfigError(VitkitError):
    """A model, a recipe or an option that does not exist or does not fit together."""


class SizeError(VitkitError):
    """An image, a grid or a channel count that the model cannot take."""


class WeightsError(VitkitError):
    """A file that is not the weights it should be, or a format that cannot hold them."""


class DecodeError(VitkitError):
    """An image that cannot be decoded; the message is one line."""


class TooManyPixels(DecodeError):
    """An image with more pixels than the limit."""


class Interrupted(Exception):
    """Work that was interrupted and saved; the message says how to continue."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


def did_you_mean(word: str, known: Iterable[str], written: Mapping[str, str] | None = None) -> str:
    """Return "; did you mean B/16 or B/32?", the known names nearest to a mistyped word, or ""; case is ignored.

    `written` has other spellings to compare with, and the name that each stands for.
    """
    by_lower = {spelling.lower(): name for spelling, name in (written or {}).items()}
    by_lower |= {name.lower(): name for name in known}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=3, cutoff=CLOSE)
    ratios = [difflib.SequenceMatcher(None, match, word.lower()).ratio() for match in matches]
    close = [by_lower[match] for match, ratio in zip(matches, ratios, strict=True) if ratio >= ratios[0] - AS_CLOSE]
    return f"; did you mean {' or '.join(dict.fromkeys(close))}?" if close else ""
