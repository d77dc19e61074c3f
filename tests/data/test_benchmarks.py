"""benchmarks/input.py and feed.py in small: they run, and what they find adds up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.data.pictures import encode, scene

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def found(name: str, *options: str | Path) -> dict[str, Any]:
    done = subprocess.run([sys.executable, BENCHMARKS / name, "--json", *options], capture_output=True, text=True,
                          timeout=300, stdin=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_input_shows_every_stage_and_the_loaders_beside_pillow(tmp_path: Path):
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(encode(scene(60 + number, 90), "JPEG"))
    told = found("input.py", "--folder", tmp_path, "--readers", "1", "--batch", "8", "--seconds", "0.1")
    assert set(told["stages_per_second"]) == {"reading the bytes", "decoding", "random crop, resize, flip", "collating"}
    together = 1 / sum(1 / speed for speed in told["stages_per_second"].values())
    chain = told["pictures_per_second"]["vitkit: uint8, random crop and flip (training)"]
    assert together == pytest.approx(chain, rel=0.5)  # which lacks reading and collating, a few hundredths
    loaders = told["loaders"]
    assert {"Pillow in torch's DataLoader", "vitkit's Loader"} <= set(loaders["pictures_per_second"])
    assert min(loaders["pictures_per_second"].values()) > 0
    assert loaders["ratio_to_pillow"]["Pillow in torch's DataLoader"] == 1


@pytest.mark.parametrize("readers", [0, 2])
def test_feeding_is_timed_beside_the_same_run_that_reads_nothing(readers: int):
    told = found("feed.py", "--pictures", "60", "--model", "mu/4", "--image", "32", "--batch", "16", "--steps", "12",
                 "--device", "cpu", "--readers", str(readers))
    speeds, waiting = told["pictures_per_second"], told["waiting_for_data"]
    assert (told["steps"], told["readers"], told["pictures"]) == (12, readers, 60)
    assert speeds["fed"] > 0
    assert 0 <= waiting < 1
    if not readers:  # reading and computing take turns: what is not waiting is the ceiling's time
        assert speeds["fed"] / speeds["ceiling"] == pytest.approx(1 - waiting, abs=0.25)
