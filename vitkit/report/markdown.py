"""Text and tables in Markdown, as the Hugging Face Hub shows them."""

import re
from collections.abc import Iterable, Sequence

_MARKUP = re.compile(r"([\\`*_\[\]<>|#$~&!])")  # characters with a meaning in Markdown, its tables and HTML


def escape(text: object) -> str:
    """Return text that Markdown shows literally, on one line."""
    return _MARKUP.sub(r"\\\1", " ".join(str(text).split()))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
