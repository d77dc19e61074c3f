"""A run folder for the tests that start a server as a user does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serve.small import small_run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("runs") / "small")
