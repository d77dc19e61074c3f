"""The README shows what is printed, links exist, and docs/architecture.md is up to date; tests/docs runs examples."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.test_layers import ORDER
from vitkit.cli.main import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tree_in_the_architecture_page_is_what_its_script_prints():
    script = [sys.executable, "docs/tree.py"]
    printed = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    shown = page.split("<!-- tree -->\n```\n")[1].split("```\n<!-- /tree -->\n")[0]
    assert shown == printed, "python docs/tree.py --write updates docs/architecture.md"


def test_the_tree_names_every_module_once_and_nothing_else():
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    tree = page.split("<!-- tree -->\n```\n")[1].split("```\n<!-- /tree -->\n")[0]
    listed = re.findall(r"^ +(\w+\.py) ", tree, flags=re.MULTILINE)
    modules = [path.name for path in (ROOT / "vitkit").rglob("*.py") if not path.name.startswith("__")]
    assert sorted(listed) == sorted(modules)


def test_the_cost_command_prints_what_the_readme_shows(capsys: pytest.CaptureFixture[str]):
    command = re.search(r"^vitkit (cost .*)$", README, flags=re.MULTILINE)[1]
    main(shlex.split(command))
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    shown = README.split("```\n224 x 224 px")[1].split("```")[0].splitlines()[1:]
    for line in shown:
        assert " ".join(line.split()) in printed


@pytest.mark.parametrize("name", ["README.md", "README.ko.md"])
def test_the_install_command_brings_every_extra_that_the_commands_need(name: str):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert set(re.fullmatch(r"vitkit\[(.*)\]", everything)[1].split(",")) == extras.keys() - {"all", "dev"}
    install = re.search(r"^pip install .*$", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)[0]
    assert "-e '.[all]'" in install


@pytest.mark.parametrize(
    "name", ["README.md", "README.ko.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/python.md"]
)
def test_every_linked_file_exists(name: str):
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text(encoding="utf-8"))
    assert all(((ROOT / name).parent / link).exists() for link in links if "://" not in link), links


def test_the_architecture_page_draws_the_import_order():
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    drawn = page.split("## The import order")[1].split("```")[1]
    assert re.findall(r"\w+", drawn) == ORDER


def test_every_file_that_the_architecture_page_names_exists():
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("<!-- tree -->")[0]
    paths = re.findall(r"[\w/]+\.py\b", page)  # relative to vitkit/, or to the repository
    assert len(paths) >= 60
    assert [path for path in paths if not (ROOT / "vitkit" / path).exists() and not (ROOT / path).exists()] == []
