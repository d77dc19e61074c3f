"""benchmarks/gpu.py at a small scale: the script compared with transformers, and failing contenders."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from vitkit.bench.ceiling import Ceiling
from vitkit.cost import cost
from vitkit.model.variants import configure

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu

    return gpu


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script as on a machine without tyro."""
    path = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    script = (
        "import sys, runpy; sys.modules['tyro'] = None; sys.path.insert(0, 'benchmarks'); "
        "runpy.run_path('benchmarks/gpu.py', run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
    )


def test_the_script_at_a_small_scale(tmp_path: Path):
    done = run(
        "--device",
        "cpu",
        "--cases",
        "tiny",
        "--modes",
        "eager",
        "--steps",
        "4",
        "--peers",
        "transformers",
        "--json",
        str(tmp_path / "results.json"),
        "--page",
        str(tmp_path / "page.md"),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "results.json").read_text())
    assert [case["case"] for case in result["cases"]] == ["tiny-train", "tiny-infer", "tiny-latency"]
    page = (tmp_path / "page.md").read_text()
    for case in result["cases"]:
        assert [row["library"] for row in case["rows"]] == ["vitkit", "transformers"]
        ours, theirs = case["rows"]
        ratio = ours["images_per_second"] / theirs["images_per_second"]
        assert ours["milliseconds"] == pytest.approx(statistics.median(ours["each_milliseconds"]), abs=2e-3)
        figures = f"{ours['images_per_second']:,.0f} | {ours['milliseconds']:.2f} | {ratio:.2f}"
        assert f"| vitkit, {ours['how']} | {figures} |" in page
        assert f"| {theirs['milliseconds']:.2f} | 1.00 |" in page
    assert result["about"]["libraries"]["transformers"] in page
    assert torch.__version__ in page
    repeated = run("--from", str(tmp_path / "results.json"))
    assert repeated.returncode == 0, repeated.stderr
    assert repeated.stdout == page


def test_when_time_is_over_no_case_is_started(tmp_path: Path):
    done = run("--device", "cpu", "--cases", "tiny-infer", "--minutes", "0")
    assert done.returncode == 0, done.stderr
    assert "tiny-infer: not started, 0 minutes are over" in done.stdout


def test_an_unknown_case_is_an_error():
    done = run("--cases", "huge")
    assert done.returncode == 2
    assert "--cases huge: choose from train-B" in done.stderr


@pytest.mark.parametrize(("name", "image"), [("mu/4", 32), ("Ti/16", 224)])
def test_a_peer_is_the_same_model(name: str, image: int, gpu: ModuleType):
    config = configure(name, image=image)
    theirs = gpu.gpu_peers.transformers(config)
    assert sum(parameter.numel() for parameter in theirs.parameters()) == cost(config).parameters


def test_a_peer_trains_and_returns_logits(gpu: ModuleType):
    config = configure("mu/4", image=32)
    step = gpu.gpu_peers.training_step(gpu.gpu_peers.transformers(config), config, CPU, batch=4, compiled=False)
    losses = [step().item() for _ in range(20)]
    assert losses[-1] < losses[0] - 0.1
    call = gpu.gpu_peers.inference_call(gpu.gpu_peers.transformers(config), config, CPU, batch=4, compiled=False)
    assert call().shape == (4, 1000)


# Failures


def contender(gpu: ModuleType, name: str, work: Any) -> Any:
    return gpu.Contender(name, "eager", False, lambda: torch.nn.Identity(), lambda model: work)


def measured(gpu: ModuleType, *contenders: Any) -> list[dict[str, Any]]:
    case = gpu.Case("inference", "mu/4", 1, 32)
    return gpu.measure(case, list(contenders), CPU, Ceiling("fp32", 1536, 1e11), 4)


def nothing() -> None:
    pass


def test_a_contender_that_fails_is_a_row_with_the_reason(gpu: ModuleType):
    def broken() -> None:
        raise TypeError("unexpected argument | 'x'\nand more")

    later = iter([None] * 6)

    def breaks_later() -> None:
        next(later)

    rows = measured(
        gpu, contender(gpu, "broken", broken), contender(gpu, "fine", nothing), contender(gpu, "late", breaks_later)
    )
    assert [row["library"] for row in rows] == ["broken", "fine", "late"]
    assert rows[0]["failed"] == "TypeError: unexpected argument | 'x'"
    assert rows[1]["steps"] == 4
    assert rows[2]["failed"] == "StopIteration"
    case = {"case": "a", "what": "inference", "model": "mu/4", "image": 32, "batch": 1, "rows": rows}
    table = gpu.page([{"about": gpu.about(CPU, {}, Ceiling("fp32", 1536, 1e11), "tanh"), "cases": [case]}])
    assert "| broken, eager | failed: TypeError: unexpected argument \\| 'x' | | | | | | |" in table


@pytest.mark.slow
def test_a_contender_that_does_not_fit_into_memory_with_the_others_runs_after_them(gpu: ModuleType):
    held, order = [], []

    def small() -> None:
        order.append("small")

    def large() -> None:
        held.append(1)
        if len(held) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        order.append("large")

    def huge() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    rows = measured(gpu, contender(gpu, "large", small), contender(gpu, "second", large), contender(gpu, "third", huge))
    assert [row.get("failed") for row in rows] == [None, None, "OutOfMemoryError: CUDA out of memory"]
    assert order == sorted(order, reverse=True)


def test_a_page_of_two_runs_takes_a_case_from_the_later_one(gpu: ModuleType):
    def result(*cases: tuple[str, float]) -> dict[str, Any]:
        figures = {"milliseconds": 1.0, "share_of_ceiling": 0.5, "peak_bytes": 2**31, "compile_seconds": 30.4}
        return {
            "about": gpu.about(CPU, {"timm": "1.0"}, Ceiling("bf16", 8192, 7e14), "tanh"),
            "cases": [
                {
                    "case": name,
                    "what": "training",
                    "model": "B/16",
                    "image": 224,
                    "batch": 256,
                    "rows": [
                        {"library": "vitkit", "how": "compiled", **figures, "images_per_second": rate},
                        {
                            "library": "timm",
                            "how": "compiled",
                            **figures,
                            "images_per_second": 1000.0,
                            "peak_bytes": 2**32,
                        },
                        {
                            "library": "timm",
                            "how": "eager",
                            **figures,
                            "images_per_second": 900.0,
                            "peak_bytes": 2**33,
                        },
                    ],
                }
                for name, rate in cases
            ],
        }

    table = gpu.page([result(("a", 1111.0), ("b", 1222.0)), result(("a", 1333.0))])
    assert "1,111" not in table
    assert "| vitkit, compiled | 1,222 | 1.00 | 1.22 | 0.50 | 2.0 | 0.50 | 30 |" in table
    assert "| vitkit, compiled | 1,333 | 1.00 | 1.33 | 0.50 | 2.0 | 0.50 | 30 |" in table
    assert "| timm, eager | 900 | 1.00 | 0.90 | 0.50 | 8.0 | 2.00 | 30 |" in table


def test_a_page_reads_results_of_earlier_versions(gpu: ModuleType):
    about = gpu.about(CPU, {}, Ceiling("bf16", 8192, 7e14), "tanh")
    about["ceiling"]["numbers"] = about["ceiling"].pop("precision")
    row = {"library": "vitkit", "how": "eager", "pictures_per_second": 1111.0, "milliseconds": 1.0}
    row |= {"share_of_ceiling": 0.5, "peak_bytes": None, "compile_seconds": None}
    case = {"case": "a", "what": "training", "model": "B/16", "image": 224, "batch": 256, "rows": [row]}
    table = gpu.page([{"about": about, "cases": [case]}])
    assert "| vitkit, eager | 1,111 | 1.00 |" in table
    assert "700 TFLOP/s, bf16" in table
