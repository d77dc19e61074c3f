"""The package's metadata: one version, bounded dependencies, an extra with everything."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shutil
import site
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
    bound = re.fullmatch(r"([\w.-]+)(?:\[[\w,-]+\])?>=([\d.]+),<(\d+)(?:;.*)?", requirement)
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


# A release that has the hole.
HOLES = {
    "jinja2": "3.1.5",  # CVE-2025-27516
    "pillow": "11.2.1",  # CVE-2025-48379
    "h11": "0.15.0",  # CVE-2025-43859
    "starlette": "0.49.0",  # CVE-2025-62727
    "python-multipart": "0.0.17",  # CVE-2024-53981
    "protobuf": "6.31.0",  # CVE-2025-4565
    "torch": "2.5.1",  # CVE-2025-32434
}


@pytest.mark.parametrize("name", HOLES)
def test_the_lower_bound_excludes_releases_with_published_holes(name: str):
    bounds = [Requirement(entry) for entry in REQUIREMENTS]
    found = [requirement for requirement in bounds if canonicalize_name(requirement.name) == name]
    assert found
    assert not any(bound.specifier.contains(HOLES[name]) for bound in found)


def test_every_package_that_make_install_installs_is_pinned():
    """The walk over the installed packages' own metadata finds the closure that pip would install."""
    pinned = set(map(canonicalize_name, PINNED))
    extras = re.search(r"-e '\.\[([\w,]+)\]'", (ROOT / "Makefile").read_text(encoding="utf-8"))[1].split(",")
    waiting = [Requirement(entry) for entry in PROJECT["dependencies"]]
    waiting += [Requirement(entry) for extra in extras for entry in PROJECT["optional-dependencies"][extra]]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen or not (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
                continue
            seen.add((name, extra))
            try:
                further = importlib.metadata.requires(name) or []
            except importlib.metadata.PackageNotFoundError:
                continue  # its pin is checked, its own requirements are not here
            for text in map(Requirement, further):
                if text.marker is None or text.marker.evaluate({"extra": extra}):
                    text.marker = None
                    waiting.append(text)
    builds_of_torch = {name for name, _ in seen if name.startswith(("nvidia-", "cuda-"))}  # not of the CPU build
    assert {name for name, _ in seen} - builds_of_torch <= pinned
    assert {"fastapi", "starlette", "uvicorn", "h11", "onnx", "onnxruntime"} <= pinned


def test_the_lock_has_a_hash_for_every_pin_and_no_address():
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()[1:]
    locked = re.findall(r"^(\S+==\S+) \\\n    --hash=sha256:[0-9a-f]{64}$", lock, re.MULTILINE)
    assert locked == pins
    assert "://" not in lock


@pytest.mark.skipif(importlib.util.find_spec("cyclonedx_py") is None, reason="cyclonedx-bom is not installed")
@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_sbom_lists_every_installed_package_with_its_version(tmp_path: Path):
    file, ready = tmp_path / "sbom.json", f"{sys.prefix}/.ready"
    # -o: the environment is taken as it is
    command = ["make", "sbom", "-o", ready, f"VENV={sys.prefix}", f"READY={ready}", f"SBOM={file}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content["bomFormat"] == "CycloneDX"
    listed = {canonicalize_name(entry["name"]): entry["version"] for entry in content["components"]}
    installed = {
        canonicalize_name(one.name): one.version
        for one in importlib.metadata.distributions(path=[*site.getsitepackages(), str(ROOT)])
    }
    assert {**listed, "vitkit": ""} == {**installed, "vitkit": ""}
    assert content["metadata"]["component"]["name"] == "vitkit"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
