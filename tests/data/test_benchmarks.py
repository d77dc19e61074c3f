"""The benchmarks of data loading and precision run at a small scale and report consistent results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.data.sample_images import encode, scene

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run_benchmark(name: str, *options: str | Path) -> dict[str, Any]:
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
def test_input_measures_every_stage_and_compares_the_loader_with_pillow(tmp_path: Path):
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(encode(scene(60 + number, 90), "JPEG"))
    result = run_benchmark("input.py", "--folder", tmp_path, "--workers", "1", "--batch", "8", "--seconds", "0.1")
    assert set(result["stages_per_second"]) == {
        "reading the bytes",
        "decoding",
        "random crop, resize, flip",
        "collating",
    }
    assert min(result["stages_per_second"].values()) > 0
    loaders = result["loaders"]
    assert {"Pillow in torch's DataLoader", "vitkit's Loader"} <= set(loaders["images_per_second"])
    assert min(loaders["images_per_second"].values()) > 0
    assert loaders["ratio_to_pillow"]["Pillow in torch's DataLoader"] == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_feed_compares_a_run_with_one_that_loads_nothing(workers: int):
    result = run_benchmark(
        "feed.py",
        "--images",
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
        "--workers",
        str(workers),
    )
    assert (result["steps"], result["workers"], result["images"]) == (12, workers, 60)
    assert min(result["images_per_second"].values()) > 0
    assert 0 <= result["waiting_for_data"] < 1


def test_bf16_is_compared_with_fp32_seed_by_seed():
    result = run_benchmark(
        "numerics.py", "fashion", "--model", "mu/8", "--image", "32", "--steps", "2", "--batch", "8", "--device", "cpu"
    )
    assert [line["between"] for line in result["differences"]] == [
        "fp32 and bf16, seed 0",
        "fp32, seeds 0 and 1",
        "bf16, seeds 0 and 1",
        "fp32 and bf16, seed 1",
    ]
    precision, seeds, *_ = (line["mean"] for line in result["differences"])
    assert 0 < precision < seeds
    assert [(one["trained_in"], one["seed"]) for one in result["scores"]] == [
        ("fp32", 0),
        ("bf16", 0),
        ("fp32", 1),
        ("bf16", 1),
    ]
    for one in result["scores"]:
        assert one["images"] == 1000
        assert one["predicted_in"]["fp32"]["same_predictions"] == 100
        assert one["predicted_in"]["bf16"]["same_predictions"] > 90


@pytest.mark.parametrize("source", ["manifest", "shards"])
def test_multilabel_goes_through_every_label_of_an_epoch(source: str):
    result = run_benchmark(
        "multilabel.py", "--images", "1000", "--classes", "40", "--batch", "8", "--steps", "2", "--source", source
    )
    for name, several in (("single-label", False), ("multi-label", True)):
        one = result[name]
        assert list(one["steps"]) == ["open", "split", "subset", "order", "batches"]
        assert (one["images"], one["classes"]) == (1000, 40)
        assert 800 < one["train"] < 900
        assert 0.08 < one["subset"] / one["train"] < 0.16  # one image of each class at least
        seen, present = one["labels_of_an_epoch"]
        assert 0 <= present - seen <= 7 * 5  # of the last images, which do not fill a batch
        assert present > 3 * one["train"] if several else present == one["train"]
        assert one["rows"] == ([8, 40] if several else [8])
    assert result["dense_mib"] == pytest.approx(1000 * 40 / 2**20)
