"""Named intermediates, kept only on request: the forward pass fills in a dict of requested names.

By default the dict is empty, which costs nothing, neither in eager mode nor in a compiled graph.
"""

from collections.abc import Iterable

from torch import Tensor

from vitkit.errors import ConfigError, did_you_mean

Seen = dict[str, Tensor | None]


def keep(seen: Seen, name: str, value: Tensor) -> None:
    if name in seen:
        seen[name] = value


def match_names(patterns: Iterable[str], known: tuple[str, ...]) -> list[str]:
    """Resolve exact names and wildcards; one that matches nothing is an error."""
    if isinstance(patterns, str):
        raise ConfigError(f"capture={patterns!r} is one string; it takes a tuple of names", try_=f"({patterns!r},)")
    names: list[str] = []
    for pattern in patterns:
        matched = [pattern] if pattern in known else [name for name in known if _matches(name, pattern)]
        if not matched:
            raise ConfigError(
                f"nothing to capture is named {pattern!r}{did_you_mean(pattern, known)}", known=", ".join(known)
            )
        names += matched
    return names


def _matches(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern with *; torch.compile cannot trace the library's fnmatch."""
    head, star, tail = pattern.partition("*")
    if not star:
        return name == pattern
    return name.startswith(head) and any(_matches(name[start:], tail) for start in range(len(head), len(name) + 1))
