"""The run folder of the tests that start a server on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

try:
    import fastapi  # noqa: F401
except ImportError:  # without vitkit[serve] the other tests, such as those marked gpu, can still be collected
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.serve.servers import small_run

    return small_run(tmp_path_factory.mktemp("runs") / "small")
