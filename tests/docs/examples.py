"""The examples of the documentation: fenced blocks of Markdown files, and the commands and code of each verb's help."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vitkit.cli.main import VERBS, verb_function

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "README.ko.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/related").glob("*.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|\s{4,}|then: |anywhere: )((?:torchrun \S+ -m )?vitkit \S.*?)(?=\s{4,}|$)")


@dataclass(frozen=True)
class Block:
    page: str
    language: str  # "" for output that is shown
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = [Block(page.name, language, content) for language, content in FENCE.findall(text)]
    assert 2 * len(found) == len(re.findall(r"^\s*```", text, re.MULTILINE)), f"{page.name}: a fence that is not seen"
    return found


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks(page)]


def command_lines(block: Block) -> Iterator[str]:
    """Yield the commands of a block for the shell, without comments."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if command := without_comment(line):
            yield command


def without_comment(line: str) -> str:
    return re.sub(r"(^|\s+)#.*", "", line).strip()


def help_commands() -> Iterator[tuple[str, str]]:
    """Yield each verb with a command that its help shows."""
    for verb in VERBS:
        for line in (verb_function(verb).__doc__ or "").splitlines()[1:]:
            yield from ((verb, match) for match in COMMAND.findall(line.strip()))


def help_code() -> dict[str, str]:
    """Return the indented code in the help of verbs, by verb."""
    code = {}
    for verb in VERBS:
        lines = (verb_function(verb).__doc__ or "").splitlines()[1:]
        indented = [line for line in lines if line.startswith(" " * 8) and not COMMAND.match(line.strip())]
        if indented:
            code[verb] = textwrap.dedent("\n".join(indented) + "\n")
    return code


def commands() -> dict[str, str]:
    """Return every command of the documentation, once, and where it stands."""
    found: dict[str, str] = {}
    for block in all_blocks():
        if block.language == "sh":
            for line in command_lines(block):
                found.setdefault(line, block.page)
    for verb, line in help_commands():
        found.setdefault(line, f"vitkit {verb} --help")
    return found


def inline_commands() -> dict[str, str]:
    """Return the commands within sentences that name more than a verb, once, and where each stands."""
    found: dict[str, str] = {}
    for page in PAGES:
        prose = FENCE.sub("", page.read_text(encoding="utf-8"))
        for command in re.findall(r"`(vitkit [^`]+)`", prose):
            command = " ".join(command.split())
            if re.match(r"vitkit \w+ [^-]", command) and "…" not in command:
                found.setdefault(command, page.name)
    return found


def vitkit_words(command: str) -> list[str] | None:
    """Return the words after `vitkit` of a command, None if it is a command of another program."""
    match = re.search(r"(?:^|\| )(?:torchrun .* -m |srun .*?|mpirun .*?)?vitkit (.*)$", command)
    # the shell puts the output of $(…) there
    return shlex.split(re.sub(r"\$\([^)]*\)", "output", match[1])) if match else None
