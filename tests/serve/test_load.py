"""Run the benchmark of the server with 64 clients for a minute, and check its results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "serve.py"


def run_benchmark(*options: str) -> dict[str, Any]:
    completed = subprocess.run(
        [sys.executable, str(BENCHMARK), "--json", *options], capture_output=True, text=True, timeout=1200
    )
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mu/4", "Ti/16"])
def test_sixty_four_clients_all_get_correct_responses_in_constant_memory(model: str):
    result = run_benchmark("--model", model, "--seconds", "60")
    assert result["distinct_predictions"] == 100  # so that a mix-up would show
    assert (result["wrong"], result["failed"], result["rejected"]) == (0, 0, 0)
    assert result["exit_codes"] == [0, 0]
    assert result["max_queue"] <= 64
    assert result["memory_at_the_end_mb"] < result["memory_after_warm_up_mb"] + 30
