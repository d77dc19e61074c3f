"""The README's promises: its tree is the tree, its examples run."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest

from vitkit.cli.main import VERBS, main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tree_names_every_module_once_and_nothing_else():
    tree = README.split("```\nvitkit/\n")[1].split("```")[0]
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
def test_every_command_shown_has_a_verb_and_options_that_exist(name: str):
    text = (ROOT / name).read_text(encoding="utf-8")
    commands = re.findall(r"^(?:torchrun \S+ -m )?vitkit (.*)$", text, re.MULTILINE)
    assert len(commands) >= 6
    for command in commands:
        verb, *words = shlex.split(command, comments=True)
        options = {option.strip("_") for option in inspect.signature(VERBS[verb]).parameters}
        assert {word[2:] for word in words if word.startswith("--")} <= options, command


@pytest.mark.parametrize("name", ["README.md", "README.ko.md"])
def test_every_file_that_is_linked_is_there(name: str):
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text(encoding="utf-8"))
    assert all((ROOT / link).exists() for link in links if "://" not in link), links
