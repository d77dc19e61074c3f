"""Imports point one way: every package imports only packages to its left, lazy imports included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import vitkit

ROOT = Path(vitkit.__file__).parent
ORDER = """
    text errors slurm launcher regular_file temporary_names
    atomic storage output_folder job_shard stored_json messages progress torch_private
    data model cost_term resnet_cost encoder_cost segmenter_cost cost table6 kernels weights config devices
    run_schema run_folder pages compute train evaluate inspect report predict bench export serve
    run_record run_evaluation run_warnings run_score shared_data continued_run run_dataset
    run python_api grid paper demo cli
""".split()
PUBLIC = ("__init__", "__main__")  # the package itself exports names of any layer, without importing them


def test_every_package_has_its_place():
    packages = {path.stem for path in ROOT.glob("*.py")} | {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages - set(PUBLIC) == set(ORDER)


def test_imports_point_to_the_left():
    assert list(upward(ROOT)) == []


def test_modules_of_a_package_do_not_import_each_other_in_a_circle():
    known = set(modules(ROOT))
    edges = {module: known.intersection(imported(path, known)) - {module} for module, path in modules(ROOT).items()}
    done: set[str] = set()
    while layer := {module for module, targets in edges.items() if module not in done and targets <= done}:
        done |= layer
    assert sorted(edges.keys() - done) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("data/loader.py", "from vitkit.train.loop import TrainingLoop"),
        ("model/vit.py", "from vitkit.kernels import fuse"),
        ("predict/fast.py", "    import vitkit.export.write"),
        ("text.py", "from vitkit.data import decode"),
    ],
)
def test_an_upward_import_is_found(file: str, line: str, tmp_path: Path):
    copy = tmp_path / file
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(f"def lazy():\n{line}\n" if line.startswith(" ") else f"{line}\n")
    (found,) = upward(tmp_path)
    assert found.startswith(file.removesuffix(".py").replace("/", "."))


def upward(root: Path) -> Iterator[str]:
    """Yield the imports that point to the right."""
    for module, path in modules(root).items():
        package = module.split(".")[0]
        for target in imported(path):
            other = target.split(".")[0]
            if package not in PUBLIC and other in ORDER and ORDER.index(other) > ORDER.index(package):
                yield f"{module} imports {target}"


def modules(root: Path) -> dict[str, Path]:
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in root.rglob("*.py")
    }


def imported(path: Path, known: set[str] | None = None) -> Iterator[str]:
    """Yield the modules of vitkit that a file imports, anywhere in it; those for type checkers alone do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vitkit":
            base = (node.module or "").removeprefix("vitkit").lstrip(".")
            names = [f"{base}.{alias.name}".lstrip(".") for alias in node.names]
            yield from (
                name if (known is None and not base) or name in (known or ()) else base or name for name in names
            )
        elif isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("vitkit.") for alias in node.names if alias.name.startswith("vitkit."))
