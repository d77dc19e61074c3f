"""Print the tree of vitkit/ with the first sentence of each module, as docs/architecture.md shows it.

python docs/tree.py            prints it
python docs/tree.py --write    writes it into docs/architecture.md
"""

from __future__ import annotations

import ast
import sys
import textwrap
from pathlib import Path

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "vitkit"
BEGIN, END = "<!-- tree -->\n```\n", "```\n<!-- /tree -->\n"
COLUMN, WIDTH = 28, 120


def tree() -> str:
    """Return the packages in the order of their imports, each with its modules."""
    sys.path.insert(0, str(DOCS.parent))
    from tests.test_layers import ORDER

    lines = ["vitkit/"]
    for name in ORDER:
        path = PACKAGE / name
        lines += _package(path, 1) if path.is_dir() else _line(path.with_suffix(".py"), 1)
    return "\n".join(lines) + "\n"


def _package(folder: Path, depth: int) -> list[str]:
    lines = _row("  " * depth + f"{folder.name}/", sentence(folder / "__init__.py"))
    for path in sorted(folder.iterdir()):
        if path.is_dir() and (path / "__init__.py").exists():
            lines += _package(path, depth + 1)
        elif path.suffix == ".py" and path.name != "__init__.py":
            lines += _line(path, depth + 1)
    return lines


def _line(path: Path, depth: int) -> list[str]:
    return _row("  " * depth + path.name, sentence(path))


def _row(name: str, text: str) -> list[str]:
    wrapped = textwrap.wrap(text, WIDTH - COLUMN) or [""]
    return [f"{name:<{COLUMN - 1}} {wrapped[0]}".rstrip(), *(" " * COLUMN + more for more in wrapped[1:])]


def sentence(path: Path) -> str:
    """Return the first line of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).rstrip(".")


def main() -> None:
    if "--write" in sys.argv:
        page = (DOCS / "architecture.md").read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        (DOCS / "architecture.md").write_text(before + BEGIN + tree() + END + rest.split(END)[1], encoding="utf-8")
    else:
        print(tree(), end="")


if __name__ == "__main__":
    main()
