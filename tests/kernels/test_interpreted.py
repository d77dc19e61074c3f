"""The kernels without a GPU: Triton's interpreter runs them, and has to be chosen before anything is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_interpreted_kernels_compute_what_torch_does():
    pytest.importorskip("triton")
    cases = sorted(str(path) for path in (Path(__file__).parent / "cases").glob("*.py"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *cases],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
