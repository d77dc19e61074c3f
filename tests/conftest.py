"""Shared fixtures, the profiles of hypothesis, and the signal handler that tests of Ctrl-C need."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

FIXTURES = Path(__file__).parent / "fixtures"
SHARED = Path(__file__).parents[2] / "shared"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a shell has started in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

# the same examples on every machine; HYPOTHESIS_PROFILE=random draws new and more ones
settings.register_profile("vitkit", deadline=None, max_examples=25, print_blob=True, derandomize=True)
settings.register_profile("random", deadline=None, max_examples=100, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "vitkit"))


@pytest.fixture(autouse=True, scope="session")
def own_caches(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what tests cache out of the user's folder, and what users cached out of tests."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def fixtures() -> Path:
    return FIXTURES


@pytest.fixture
def shared() -> Path:
    """Real weights and data that are too large for the repository."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared: real weights and data that are not part of the repository")
    return SHARED


@pytest.fixture(autouse=True)
def fresh_start() -> None:
    torch.manual_seed(0)
    torch.compiler.reset()  # compiled code of earlier models counts towards torch's limit of recompilations


def expected(name: str) -> dict[str, torch.Tensor]:
    """A fixture's arrays; images become NCHW."""
    with np.load(FIXTURES / f"{name}_expected.npz") as arrays:
        tensors = {key: torch.from_numpy(arrays[key]) for key in arrays.files}
    return {key: value.permute(0, 3, 1, 2) if key.startswith("image") else value for key, value in tensors.items()}
