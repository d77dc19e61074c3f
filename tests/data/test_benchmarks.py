"""The benchmarks of data and numbers in small: they run, and what they find is what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.data.images import encode, scene

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def found(name: str, *options: str | Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / name, "--json", *options],
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_input_shows_every_stage_and_the_loaders_beside_pillow(tmp_path: Path):
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(encode(scene(60 + number, 90), "JPEG"))
    told = found("input.py", "--folder", tmp_path, "--readers", "1", "--batch", "8", "--seconds", "0.1")
    assert set(told["stages_per_second"]) == {"reading the bytes", "decoding", "random crop, resize, flip", "collating"}
    assert min(told["stages_per_second"].values()) > 0
    loaders = told["loaders"]
    assert {"Pillow in torch's DataLoader", "vitkit's Loader"} <= set(loaders["pictures_per_second"])
    assert min(loaders["pictures_per_second"].values()) > 0
    assert loaders["ratio_to_pillow"]["Pillow in torch's DataLoader"] == 1


@pytest.mark.parametrize("readers", [0, 2])
def test_feeding_is_timed_beside_the_same_run_that_reads_nothing(readers: int):
    told = found(
        "feed.py",
        "--pictures",
        "60",
        "--model",
        "mu/4",
        "--image",
        "32",
        "--batch",
        "16",
        "--steps",
        "12",
        "--device",
        "cpu",
        "--readers",
        str(readers),
    )
    assert (told["steps"], told["readers"], told["pictures"]) == (12, readers, 60)
    assert min(told["pictures_per_second"].values()) > 0
    assert 0 <= told["waiting_for_data"] < 1


def test_fast_numbers_are_compared_with_float32_seed_by_seed():
    told = found(
        "numerics.py", "fashion", "--model", "mu/8", "--image", "32", "--steps", "2", "--batch", "8", "--device", "cpu"
    )
    assert [line["between"] for line in told["differences"]] == [
        "fp32 and bf16, seed 0",
        "fp32, seeds 0 and 1",
        "bf16, seeds 0 and 1",
        "fp32 and bf16, seed 1",
    ]
    narrow, seeds, *_ = (line["mean"] for line in told["differences"])
    assert 0 < narrow < seeds
    assert [(one["trained_in"], one["seed"]) for one in told["scores"]] == [
        ("fp32", 0),
        ("bf16", 0),
        ("fp32", 1),
        ("bf16", 1),
    ]
    for one in told["scores"]:
        assert one["pictures"] == 1000
        assert one["answered_in"]["fp32"]["same_answers"] == 100
        assert one["answered_in"]["bf16"]["same_answers"] > 90
