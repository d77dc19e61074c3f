"""The package's metadata: one version, bounded dependencies, an extra with everything."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import vitkit

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
PINNED = dict(re.findall(r"^([\w.-]+)==(\d+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
REQUIREMENTS = [
    *PROJECT["dependencies"],
    *(entry for extra, entries in PROJECT["optional-dependencies"].items() if extra != "all" for entry in entries),
]


def test_the_version_is_written_in_one_place():
    assert "version" not in PROJECT
    assert PROJECT["dynamic"] == ["version"]
    source = ROOT / PYPROJECT["tool"]["hatch"]["version"]["path"]
    # the pattern by which hatchling reads it
    versions = re.findall(r"^__version__ *= *(['\"])v?(.+?)\1", source.read_text(encoding="utf-8"), re.MULTILINE)
    assert [version for _, version in versions] == [vitkit.__version__]
    assert f"\nversion: {vitkit.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_every_dependency_ends_before_a_major_version(requirement: str):
    bound = re.fullmatch(r"([\w.-]+)>=([\d.]+),<(\d+)(?:;.*)?", requirement)
    assert bound, requirement
    name, least, limit = bound.groups()
    assert int(least.split(".")[0]) < int(limit)
    tested = next((PINNED[pin] for pin in PINNED if _normal(pin) == _normal(name)), None)
    assert tested is None or int(tested) < int(limit)  # the tested version is allowed


def test_the_extra_all_holds_every_extra_but_dev():
    extras = PROJECT["optional-dependencies"]
    [reference] = extras["all"]
    assert reference.startswith("vitkit[")
    assert set(reference[len("vitkit[") : -1].split(",")) == extras.keys() - {"all", "dev"}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
