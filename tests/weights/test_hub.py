"""hf:OWNER/NAME is downloaded by the real huggingface_hub, in its own process, from a local fake of the Hub."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import vitkit
from tests.conftest import expected
from tests.model.kinds import images_for, make
from tests.weights.fake_hub import COMMIT, hub
from tests.weights.rounding import ROUNDING
from vitkit.model.variants import configure, name_of
from vitkit.weights.bundled import BUNDLED
from vitkit.weights.public import DEFAULTS, PUBLIC

Fetch = Callable[..., subprocess.CompletedProcess[str]]

# It loads weights and stores the logits of an image; the environment variables set the Hub.
SCRIPT = """
import sys, numpy, torch, vitkit
try:
    model = vitkit.load(sys.argv[1])
except vitkit.VitkitError as error:
    sys.exit(str(error))
numpy.save(sys.argv[2], model(torch.from_numpy(numpy.load(sys.argv[3]))).detach().numpy())
"""


@pytest.fixture
def served(tmp_path: Path, fixtures: Path) -> Iterator[tuple[Fetch, list[str], Path]]:
    repository = tmp_path / "served" / "google" / "tiny-vit"
    vitkit.save(vitkit.load(fixtures / "google_token_weights.npz"), repository, format="hf")
    np.save(tmp_path / "image.npy", expected("google_token")["image"].contiguous().numpy())

    with hub(tmp_path / "served") as (address, log):

        def fetch(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
            settings = {
                **os.environ,
                "HF_ENDPOINT": address,
                "HF_HOME": str(tmp_path / "cache"),
                "HF_HUB_DISABLE_TELEMETRY": "1",
                "NO_PROXY": "*",
                **environment,
            }
            command = [sys.executable, "-c", SCRIPT, source, str(tmp_path / "logits.npy"), str(tmp_path / "image.npy")]
            return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120)

        fetch.address = address  # type: ignore[attr-defined]
        yield fetch, log, tmp_path


def test_a_repository_is_downloaded_once_and_serves_offline(served: tuple[Fetch, list[str], Path]):
    fetch, log, folder = served
    result = fetch("hf:google/tiny-vit")
    assert result.returncode == 0, result.stderr
    logits = torch.from_numpy(np.load(folder / "logits.npy"))
    torch.testing.assert_close(logits, expected("google_token")["logits"], atol=ROUNDING, rtol=0)
    downloads = [line for line in log if line.startswith("GET") and line.endswith("model.safetensors")]
    assert len(downloads) == 1

    log.clear()
    assert fetch(f"hf:google/tiny-vit@{COMMIT}").returncode == 0
    assert not [line for line in log if line.startswith("GET") and "safetensors" in line]

    log.clear()
    offline = fetch("hf:google/tiny-vit", HF_HUB_OFFLINE="1")
    assert offline.returncode == 0, offline.stderr
    assert not log


@pytest.mark.parametrize(
    ("source", "environment", "message"),
    [
        ("hf:google/no-such-vit", {}, "does not exist on the Hub, or is private"),
        ("hf:google/tiny-vit@v9", {}, "the repository has no such revision"),
        ("hf:gated/vit", {}, "is gated: its users have to accept its conditions first"),
        ("hf:not a name", {}, "is not a repository name"),
        ("hf:google/tiny-vit", {"HF_HUB_OFFLINE": "1"}, "cannot be downloaded, and is not in the local cache"),
        # huggingface_hub retries a refused connection for 25 seconds
        pytest.param(
            "hf:google/tiny-vit", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "cannot be downloaded", marks=pytest.mark.slow
        ),
    ],
)
def test_a_failed_download_is_a_clear_error(
    source: str, environment: dict[str, str], message: str, served: tuple[Fetch, list[str], Path]
):
    fetch, _, _ = served
    result = fetch(source, **environment)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    if "cannot be downloaded" in message:
        assert "--weights PATH" in result.stderr  # the message names local alternatives


def test_a_repository_without_weights_is_an_error_that_lists_the_expected_files(served: tuple[Fetch, list[str], Path]):
    fetch, _, folder = served
    (folder / "served" / "google" / "empty").mkdir()
    (folder / "served" / "google" / "empty" / "config.json").write_text("{}")
    result = fetch("hf:google/empty")
    assert "holds no weights that vitkit can read" in result.stderr
    assert "model.safetensors" in result.stderr


def test_a_timm_repository_is_read(served: tuple[Fetch, list[str], Path]):
    fetch, _, folder = served
    model = make("gap-norm")
    vitkit.save(model, folder / "served" / "timm" / "vit_avg", format="timm")
    images = images_for(model)
    np.save(folder / "image.npy", images.numpy())
    result = fetch("hf:timm/vit_avg")
    assert result.returncode == 0, result.stderr
    torch.testing.assert_close(torch.from_numpy(np.load(folder / "logits.npy")), model(images))


def test_a_cache_that_another_tool_filled_serves_offline(served: tuple[Fetch, list[str], Path]):
    fetch, log, folder = served
    script = (
        "import huggingface_hub as hub\n"
        "for name in ('config.json', 'model.safetensors'): hub.hf_hub_download('google/tiny-vit', name)"
    )
    environment = {**os.environ, "HF_ENDPOINT": fetch.address, "HF_HOME": str(folder / "cache")}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=60)
    log.clear()
    result = fetch("hf:google/tiny-vit", HF_HUB_OFFLINE="1")
    assert result.returncode == 0, result.stderr
    assert not log


def test_a_missing_shard_is_named(served: tuple[Fetch, list[str], Path]):
    fetch, _, folder = served
    repository = folder / "served" / "google" / "large"
    repository.mkdir()
    (repository / "model.safetensors.index.json").write_text('{"weight_map": {"a": "shard-1.safetensors"}}')
    assert "lacks shard-1.safetensors, which its index lists" in fetch("hf:google/large").stderr


@pytest.mark.parametrize("name", PUBLIC)
def test_public_checkpoints_belong_to_named_variants(name: str):
    assert name_of(configure(name)) == name
    assert DEFAULTS[name] is PUBLIC[name][0]
    for checkpoint in PUBLIC[name]:
        assert checkpoint.source.startswith(("hf:timm/", "hf:google/")) or checkpoint.source in BUNDLED
        assert checkpoint.licence == "Apache-2.0"
        assert checkpoint.preprocessing.mean == (0.5, 0.5, 0.5)
