"""Sixty-four clients for a minute: the benchmark, with what it must find."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "serve.py"


def measured(*options: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--json", *options], capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mu/4", "Ti/16"])
def test_sixty_four_clients_are_all_answered_rightly_in_flat_memory(model: str):
    found = measured("--model", model, "--seconds", "60")
    assert found["different_answers"] == 100  # a mixed-up answer would show
    assert (found["wrong"], found["failed"], found["refused"]) == (0, 0, 0)
    assert found["exit_codes"] == [0, 0]
    assert found["deepest_queue"] <= 64
    assert found["memory_at_the_end_mb"] < found["memory_after_warm_up_mb"] + 30
