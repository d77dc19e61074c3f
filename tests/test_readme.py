"""The README's promises: its tree is the tree, its examples run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from vitkit.cli import main

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


def test_the_check_command_prints_what_the_readme_shows(capsys: pytest.CaptureFixture[str], tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    main(["check", "fashion"])
    shown = README.split("```\ndata ")[1].split("```")[0]
    assert capsys.readouterr().out == f"data {shown}"
