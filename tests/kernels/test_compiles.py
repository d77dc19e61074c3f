"""Every kernel compiles for the GPUs that it is for, as it is launched there; no GPU is needed for that."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ON_CHIP = {80: 164_000, 90: 228_000}  # bytes that a program may have at most, by NVIDIA's tables


@pytest.mark.parametrize("ability", ON_CHIP)
def test_every_kernel_compiles_and_fits(ability: int):
    pytest.importorskip("triton")
    script = Path(__file__).with_name("compiling.py")
    done = subprocess.run(
        [sys.executable, script, str(ability)], capture_output=True, text=True, timeout=600, cwd=script.parents[2]
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = dict(re.findall(r"(.*): (\d+) bytes on chip", done.stdout))
    assert len(found) == (19 if ability >= 90 else 17)
    assert all(int(shared) < ON_CHIP[ability] for shared in found.values())
