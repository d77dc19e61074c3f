"""docs/command-line.md names every environment variable that the code reads, and no other of ours."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import vitkit
from vitkit import job_shard, launcher

ROOT = Path(vitkit.__file__).parent
PAGE = (ROOT.parent / "docs" / "command-line.md").read_text(encoding="utf-8")


def variables_read() -> dict[str, str]:
    """Return the names that `os.environ` is asked for, and where; a name that cannot be determined is an error."""
    # these are read from a mapping that a caller may replace
    names = {name: module.__name__ for module in (launcher, job_shard) for name in module.VARIABLES}
    for path in ROOT.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if (key := environment_key(node)) is not None:
                for name in values_of(key, tree):
                    names[name] = f"{path.relative_to(ROOT)}:{node.lineno}"  # type: ignore[attr-defined]
    return names


def environment_key(node: ast.AST) -> ast.expr | None:
    """Return the key of os.environ.get(KEY), os.getenv(KEY), os.environ[KEY] or KEY in os.environ."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="environ")), args=[key, *_]):
            return key
        case ast.Call(func=ast.Attribute(attr="getenv"), args=[key, *_]):
            return key
        case ast.Subscript(value=ast.Attribute(attr="environ"), slice=key):
            return key
        case ast.Compare(left=key, comparators=[ast.Attribute(attr="environ")]):
            return key
    return None


def values_of(key: ast.expr, tree: ast.AST) -> list[str]:
    """Return the strings that an expression stands for: itself, a constant, or the items of a comprehension."""
    if isinstance(key, ast.Constant):
        return [key.value]
    assert isinstance(key, ast.Name), ast.unparse(key)
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)) if name == key.id:
                return [value]
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                for target, item in zip(targets, values, strict=True):
                    if isinstance(target, ast.Name) and target.id == key.id and isinstance(item, ast.Constant):
                        return [item.value]
            case ast.comprehension(target=ast.Name(id=name), iter=ast.Tuple(elts=values)) if name == key.id:
                return [item.value for item in values if isinstance(item, ast.Constant)]
    raise AssertionError(f"{ast.unparse(key)}: which environment variable is this?")


def documented() -> set[str]:
    table = PAGE.split("## Environment variables")[1].split("Libraries below vitkit")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return set(re.findall(r"`(\w+)`", " ".join(cells)))


def test_every_variable_that_the_code_reads_is_documented():
    read = variables_read()
    assert {"VITKIT_API_KEY", "VITKIT_LOG_FORMAT", "XDG_CACHE_HOME", "RANK"} <= read.keys()  # the search finds them
    assert {name: where for name, where in read.items() if name not in documented()} == {}


def test_every_documented_variable_is_read():
    assert documented() - variables_read().keys() == set()
