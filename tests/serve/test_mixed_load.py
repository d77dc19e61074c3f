"""The load test of the server with clients of every kind: its measures, and a short run of it."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import theilslopes

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TREE = runpy.run_path(str(BENCHMARKS / "process_tree.py"))


@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=30))
def test_growth_is_the_slope_of_theil_and_sen_over_the_time(values: list[float]):
    seconds = np.arange(len(values)) * 2.0
    expected = theilslopes(values, seconds).slope * seconds[-1]
    np.testing.assert_allclose(TREE["growth"](seconds, np.array(values)), expected, atol=1e-9)


def test_growth_sees_a_leak_and_not_peaks_or_a_burst():
    rng = np.random.default_rng(0)
    seconds = np.arange(1800.0)
    level = 600 + rng.normal(0, 5, 1800)
    level[rng.random(1800) < 0.1] += 300  # large images
    level[1500:1600] += 200  # a burst
    assert abs(TREE["growth"](seconds, level)) < 3
    leak = level + seconds / 60  # a megabyte in a minute
    assert 25 < TREE["growth"](seconds, leak) < 35


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_descriptors_threads_and_memory_of_children_and_grandchildren_count():
    program = """
import subprocess, sys, threading, time
depth = int(sys.argv[1])
held = [open('/dev/null') for _ in range(50)], bytearray(40_000_000)
threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
if depth:
    child = subprocess.Popen([sys.executable, '-c', sys.argv[2], str(depth - 1), sys.argv[2]], stdout=subprocess.PIPE)
    child.stdout.readline()
print('ready', flush=True)
time.sleep(3600)
"""
    process = subprocess.Popen([sys.executable, "-c", program, "2", program], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        usage = TREE["measure"](process.pid, 0.0)
        processes = TREE["descendants"](process.pid)
    finally:
        for folder in TREE["descendants"](process.pid):
            os.kill(int(folder.name), 9)
        process.communicate()
    assert (usage.processes, usage.threads, len(processes)) == (3, 6, 3)
    assert 150 + 9 <= usage.descriptors < 200
    assert usage.resident_mb > 120


@pytest.mark.slow
def test_a_minute_of_mixed_load_has_no_wrong_answer():
    command = [sys.executable, str(BENCHMARKS / "serve_mixed_load.py"), "--model", "mu/4", "--minutes", "1", "--json"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=900)
    result = json.loads(completed.stdout)
    assert result["wrong"] == 0
    assert result["valid_answered"] > 100
    assert {status for counts in result["statuses"].values() for status in counts} >= {"200", "401", "408", "422"}
    assert [problem for problem in result["problems"] if not problem.startswith("level")] == []
