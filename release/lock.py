"""Write constraints.txt and requirements.lock: every package of the development environment, pinned, with hashes.

constraints.txt pins versions, for any platform. requirements.lock adds the SHA-256 of each file that pip chose here, so
it holds for one platform and one Python version, which it names, and for torch's CPU build where pip is configured to
find it. `make lock` keeps the pins of constraints.txt; `make upgrade` resolves without them.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CONSTRAINTS, LOCK = ROOT / "constraints.txt", ROOT / "requirements.lock"
EXTRAS = "dev,hub,formats,export,serve,ray,remote,dense"  # what the Makefile installs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--upgrade", action="store_true", help="resolve without the pins of constraints.txt")
    packages = resolve(upgrade=parser.parse_args().upgrade)
    CONSTRAINTS.write_text(constraints(packages), encoding="utf-8")
    LOCK.write_text(lock(packages), encoding="utf-8")
    print(f"{len(packages)} packages → {CONSTRAINTS.name}, {LOCK.name}")


def resolve(*, upgrade: bool) -> list[dict[str, Any]]:
    """Return pip's record of each package that it would install into an empty environment, sorted by name."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        pins = [] if upgrade else ["--constraint", str(CONSTRAINTS)]
        # --only-binary: a source archive runs its own code while it is built
        only = ["--only-binary", ":all:", "--report", str(report)]
        subprocess.run([*command, *pins, *only, f"{ROOT}[{EXTRAS}]", *build], check=True)
        packages = json.loads(report.read_text(encoding="utf-8"))["install"]
    others = [package for package in packages if package["metadata"]["name"] != "vitkit"]
    return sorted(others, key=lambda package: normal_name(package["metadata"]["name"]))


def constraints(packages: list[dict[str, Any]]) -> str:
    head = f"# The versions that the test suite runs with: pip install -c constraints.txt -e '.[{EXTRAS}]'\n"
    return head + "".join(f"{pin(package)}\n" for package in packages)


def lock(packages: list[dict[str, Any]]) -> str:
    torch = next(package for package in packages if package["metadata"]["name"] == "torch")
    return (
        f"# The packages of constraints.txt with the hashes of their files; `make lock` writes it.\n"
        f"# For {platform.system()} {platform.machine()}, Python {platform.python_version().rpartition('.')[0]}, "
        f"torch {torch['metadata']['version']}.\n"
        f"# pip install --require-hashes -r requirements.lock && pip install --no-deps --no-build-isolation .\n"
    ) + "".join(f"{pin(package)} \\\n    --hash=sha256:{sha256(package)}\n" for package in packages)


def pin(package: dict[str, Any]) -> str:
    """Return NAME==VERSION, without a local part such as torch's +cpu: the version is the same for all builds."""
    return f"{normal_name(package['metadata']['name'])}=={package['metadata']['version'].partition('+')[0]}"


def sha256(package: dict[str, Any]) -> str:
    return package["download_info"]["archive_info"]["hashes"]["sha256"]


def normal_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
